"""Errors as replies, in the format of the path's API or in llama-server's: ``{"error": {"code", "message", "type"}}``
with its statuses and types (llama.cpp tools/server/server-common.cpp, format_error_response)."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from server.dialects.errors import error_of_api
from server.errors import (
    AuthenticationFailed,
    ContextExceeded,
    InternalError,
    InvalidRequest,
    LlamapoolError,
    ModelNotFound,
    NotFound,
    NotSupported,
    PermissionDenied,
    QueueFull,
    Unavailable,
    unexpected,
)
from server.telemetry.record import RECORD, Record, reason_of
from server.transport.body import BodyTimeout, BodyTooLarge, TooManyValues, UnsupportedEncoding
from server.transport.cors import NotJson
from server.transport.endpoints import TARGET, Target
from server.transport.limits import RateLimited, TooManyBodies

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """Status and llama-server's ``type`` of a class of errors, and its row in docs/errors.md; no ``cause`` = no row."""

    error: type[LlamapoolError]
    status: int
    type: str
    cause: str = ""
    remedy: str = ""


KINDS = (  # the first that matches counts
    Kind(
        *(ContextExceeded, 400, "exceed_context_size_error"),
        "the prompt does not fit the context: `n_prompt_tokens`, `n_ctx`",
        "shorten the prompt, or raise `n_ctx`",
    ),
    Kind(
        *(BodyTooLarge, 413, "invalid_request_error"),
        "the body is larger than `max_body_bytes`, or has too many values",
        "send less",
    ),
    Kind(TooManyValues, 413, "invalid_request_error"),
    Kind(
        *(BodyTimeout, 408, "invalid_request_error"),
        "the body did not arrive in `timeout_s`, or `idle_s` passed without a byte of it",
        "retry",
    ),
    Kind(
        *(UnsupportedEncoding, 415, "invalid_request_error"),
        "the body is compressed, or not JSON by its `Content-Type`",
        "send `application/json`, uncompressed",
    ),
    Kind(NotJson, 415, "invalid_request_error"),
    Kind(
        *(InvalidRequest, 400, "invalid_request_error"),
        "the body is wrong: a field, a value, a schema that can't be enforced",
        "correct the field that the message names",
    ),
    Kind(
        *(AuthenticationFailed, 401, "authentication_error"),
        "no API key, or a wrong one",
        "`Authorization: Bearer KEY`, or `X-Api-Key`",
    ),
    Kind(
        *(PermissionDenied, 403, "permission_error"),
        "the key lacks a permission, or a page of another site sent the request",
        "a key with that scope ([security](security.md))",
    ),
    Kind(
        *(NotFound, 404, "not_found_error"),
        "no such path, model, response or slot; also a model that is not the key's",
        "the message lists the available models",
    ),
    Kind(
        *(NotSupported, 501, "not_supported_error"),
        "this server or model was started without it (`--metrics`, `--slots`, embeddings, a projector)",
        "the message names the option; official clients do not retry (`X-Should-Retry`)",
    ),
    Kind(
        *(RateLimited, 429, "rate_limit_error"),
        "a limit of the key is reached: concurrent requests, requests or tokens per minute, tokens per day or month",
        "wait for `Retry-After`",
    ),
    Kind(
        *(QueueFull, 429, "unavailable_error"),
        "too many requests (`max_queue`, `max_preparing`), decoded media, background responses or open web UIs",
        "wait for `Retry-After`",
    ),
    Kind(
        *(Unavailable, 503, "unavailable_error"),
        "the model is loading, has failed or does not fit, a time limit passed, or the server stops",
        "wait for `Retry-After` if present; the message has the reason",
    ),
    Kind(
        *(InternalError, 500, "server_error"),
        "a bug in the server; the log has the details with the request's id",
        "report it with those lines",
    ),
)
_HTTP_TYPES = {404: "not_found_error", 401: "authentication_error", 403: "permission_error"}

EXPECTED = (LlamapoolError, RecursionError, HTTPException)
"""Errors that endpoints raise on purpose; any other error is a bug."""

ErrorReply = tuple[int, dict[str, Any], dict[str, str]]


def error_body(error: Exception) -> ErrorReply:
    """Return status, body and extra headers of an error, for replies and for error events of streams. An unexpected
    error becomes a 500 without its text and is logged with its traceback.
    """
    if isinstance(error, LlamapoolError):
        return _known(error)
    if isinstance(error, RecursionError):
        logger.warning("a request nests too deeply: it was refused", exc_info=error)
        return _known(InvalidRequest("the request nests too deeply"))
    if isinstance(error, HTTPException):
        return _http(error)
    if isinstance(error, ImportError):
        logger.error("cannot import %s", error.name or "a package", exc_info=error)
    else:
        logger.error("unhandled error in a request; this is a bug, please report it", exc_info=error)
    return _known(unexpected(error))


def error_response(error: Exception, scope: Scope) -> Response:
    """Return `error` as the whole reply to the request of `scope`, in the format of its API."""
    target: Target = scope[TARGET]
    record: Record | None = scope.get(RECORD)
    if record is not None:
        record.error = reason_of(error)
    status, body, headers = error_body(error)
    for_anthropic = any(name == b"anthropic-version" for name, _ in scope["headers"])
    error_object = error_of_api(target.path, status, body, for_anthropic=for_anthropic)
    return json_reply(error_object, status=status, headers=headers)


def _known(error: LlamapoolError) -> ErrorReply:
    kind = next((kind for kind in KINDS if isinstance(error, kind.error)), KINDS[-1])
    detail: dict[str, Any] = {"code": kind.status, "message": error.message, "type": kind.type}
    headers: dict[str, str] = {}
    if isinstance(error, ContextExceeded):
        detail |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    elif isinstance(error, ModelNotFound):
        detail["param"] = "model"
    elif isinstance(error, InvalidRequest) and error.param:
        detail["param"] = error.param
    if isinstance(error, InvalidRequest) and error.code:
        detail["code"] = error.code
    if isinstance(error, AuthenticationFailed):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, NotSupported):
        headers["X-Should-Retry"] = "false"  # otherwise OpenAI's and Anthropic's clients retry, as after any 5xx
    if isinstance(error, BodyTooLarge | BodyTimeout | TooManyBodies):
        headers["Connection"] = "close"  # the rest of the body is not read
    if isinstance(error, Unavailable) and error.retry_after_s:
        headers["Retry-After"] = str(error.retry_after_s)
    return kind.status, {"error": detail}, headers


def _http(error: HTTPException) -> ErrorReply:
    """Convert Starlette's errors: unknown paths, with llama-server's text, and wrong methods."""
    status = error.status_code
    type_ = _HTTP_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    message = "File Not Found" if status == 404 else str(error.detail)
    return status, {"error": {"code": status, "message": message, "type": type_}}, dict(error.headers or {})


JSON_TYPE = "application/json; charset=utf-8"


def json_reply(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return `value` as a JSON reply with llama-server's content type."""
    return Response(orjson.dumps(value), status_code=status, headers=headers, media_type=JSON_TYPE)
