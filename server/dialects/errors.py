"""Converts llama-server's errors, ``{"error": {"code", "message", "type"}}``, to the format of each API.

The HTTP status is the same in every API. Anthropic's types follow from it (https://docs.anthropic.com/en/api/errors).
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson

from server.dialects.common import Json, event, typed_event
from server.telemetry.record import REQUEST_ID

CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long, by which agents detect that they must shorten it."""
_CODES = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    501: "not_supported",
    503: "service_unavailable",
}
"""OpenAI's codes by status, for errors without a more specific one."""
_UNVERSIONED = ("/chat/completions", "/chat/completions/input_tokens", "/responses", "/audio/transcriptions")
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_MESSAGES = "/v1/messages"
_SHARED = ("/v1/files", "/v1/models")


def speaks_anthropic(path: str) -> bool:
    """Return whether the endpoint at `path` (with any prefix) is one of the Messages API."""
    return path.endswith(_MESSAGES) or f"{_MESSAGES}/" in path


def anthropic_error(status: int, error: Json) -> Json:
    """Convert llama-server's ``{"error": {"message", ...}}`` for `status` to Anthropic's format.

    The message for a prompt that is too long is Anthropic's, because agents search for it to start compaction. The one
    for an unknown model lets Claude Code select another model.
    """
    detail: dict[str, Any] = error["error"]
    message = detail["message"]
    if "n_prompt_tokens" in detail:
        message = f"prompt is too long: {detail['n_prompt_tokens']} tokens > {detail['n_ctx']} maximum"
    elif status == 404 and detail.get("param") == "model":
        message = f"model: {message}"
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": REQUEST_ID.get() or None}


def anthropic_error_event(status: int, error: Json) -> bytes:
    return typed_event(anthropic_error(status, error))


def openai_error(status: int, body: Json) -> Json:
    """Return llama-server's error in OpenAI's format, with ``param`` and a string as ``code``."""
    detail: Json = body["error"]
    return {"error": {**detail, "param": detail.get("param"), "code": _openai_code(status, detail)}}


def openai_error_event(status: int, body: Json) -> bytes:
    return event(openai_error(status, body))


def _openai_code(status: int, detail: Json) -> str:
    """Return the ``code`` by which OpenAI's clients recognize an error."""
    param, message = detail.get("param"), detail["message"]
    if isinstance(detail["code"], str):
        return detail["code"]
    if "n_prompt_tokens" in detail:
        return CONTEXT_EXCEEDED
    if param == "previous_response_id" and message.endswith("not found."):
        return "previous_response_not_found"  # Codex then sends the whole conversation
    if param == "model" and status == HTTPStatus.NOT_FOUND:
        return "model_not_found"
    if param and status == HTTPStatus.BAD_REQUEST:
        return "missing_required_parameter" if message.endswith("is required") else "invalid_value"
    return _CODES.get(status, "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error")


def speaks_openai(path: str) -> bool:
    """Return whether the endpoint at `path` (with any prefix) reports errors in OpenAI's format.

    These are the endpoints under ``/v1``, except those of other dialects and health checks, and their paths without
    ``/v1`` in llama-server.
    """
    if path.endswith("/v1/health"):
        return False
    return "/v1/" in path or path.endswith(_UNVERSIONED) or "/responses/" in path


def speaks_ollama(path: str) -> bool:
    """Return whether the endpoint at `path` (without the server's prefix) is one of Ollama's API."""
    return path.startswith("/api/")


def ollama_error(_: int, error: Json) -> Json:
    """Return an error in Ollama's format."""
    return {"error": error["error"]["message"]}


def error_line(status: int, error: Json) -> bytes:
    """Return the last line of a failed stream in Ollama's format."""
    return orjson.dumps(ollama_error(status, error)) + b"\n"


_APIS: tuple[tuple[Callable[[str], bool], Callable[[int, Json], Json]], ...] = (
    (speaks_anthropic, anthropic_error),
    (speaks_ollama, ollama_error),
    (lambda path: path.endswith("/v2/rerank"), lambda _, error: {"message": error["error"]["message"]}),  # Cohere's
    (speaks_openai, openai_error),
)
"""For each API, a predicate of its paths and the conversion of errors. The first match applies."""


def error_of_api(path: str, status: int, error: Json, *, for_anthropic: bool = False) -> Json:
    """Return an error in the format of the API that `path` belongs to.

    ``for_anthropic``: the client uses Anthropic's API, which shares paths with OpenAI's.
    """
    if for_anthropic and path.startswith(_SHARED):
        return anthropic_error(status, error)
    return next((convert(status, error) for speaks, convert in _APIS if speaks(path)), error)
