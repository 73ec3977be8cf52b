"""Errors in the words of each API, from llama-server's ``{"error": {"code", "message", "type"}}`` and the status.

The status is the same in every API. Anthropic's types follow from it (https://docs.anthropic.com/en/api/errors).
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson

from server.dialects.common import Json, event, typed_event
from server.telemetry.record import REQUEST_ID

CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long, which agents look for to know when to make it shorter."""
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
"""OpenAI's code for a status, unless the error has its own."""
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


def speaks_anthropic(path: str) -> bool:
    """Return whether the endpoint at `path` (with any prefix) is one of the Messages API."""
    return path.endswith(_MESSAGES) or f"{_MESSAGES}/" in path


def anthropic_error(status: int, error: Json) -> Json:
    """Convert llama-server's ``{"error": {"message", ...}}`` for `status` to Anthropic's format.

    A prompt that is too long has Anthropic's wording, which agents search for to start compaction; so has an unknown
    model, so that Claude Code selects another one.
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
    """Return an error's body as OpenAI's API has it: llama-server's, with ``param`` and OpenAI's string as ``code``."""
    detail: Json = body["error"]
    return {"error": {**detail, "param": detail.get("param"), "code": _openai_code(status, detail)}}


def openai_error_event(status: int, body: Json) -> bytes:
    return event(openai_error(status, body))


def _openai_code(status: int, detail: Json) -> str:
    """Return the string by which OpenAI's clients recognize an error."""
    param, message = detail.get("param"), detail["message"]
    if isinstance(detail["code"], str):
        return detail["code"]
    if "n_prompt_tokens" in detail:
        return CONTEXT_EXCEEDED
    if param == "previous_response_id" and message.endswith("not found."):
        return "previous_response_not_found"  # Codex sends the whole conversation then
    if param == "model" and status == HTTPStatus.NOT_FOUND:
        return "model_not_found"
    if param and status == HTTPStatus.BAD_REQUEST:
        return "missing_required_parameter" if message.endswith("is required") else "invalid_value"
    return _CODES.get(status, "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error")


def speaks_openai(path: str) -> bool:
    """Return whether the endpoint at `path` (with any prefix) reports errors as OpenAI's API does.

    These are the endpoints under ``/v1`` that no other dialect claims, and llama-server's other names of them. Health
    checks stay llama-server's.
    """
    if path.endswith("/v1/health"):
        return False
    return "/v1/" in path or path.endswith(_UNVERSIONED) or "/responses/" in path


def speaks_ollama(path: str) -> bool:
    """Return whether the endpoint at `path` (without the server's prefix) is one of Ollama's API."""
    return path.startswith("/api/")


def ollama_error(_: int, error: Json) -> Json:
    """Return an error's body as Ollama's API has it."""
    return {"error": error["error"]["message"]}


def error_line(status: int, error: Json) -> bytes:
    """Return the last line of a stream that fails."""
    return orjson.dumps(ollama_error(status, error)) + b"\n"


_APIS: tuple[tuple[Callable[[str], bool], Callable[[int, Json], Json]], ...] = (
    (speaks_anthropic, anthropic_error),
    (speaks_ollama, ollama_error),
    (lambda path: path.endswith("/v2/rerank"), lambda _, error: {"message": error["error"]["message"]}),  # Cohere's
    (speaks_openai, openai_error),
)
"""Which paths belong to which API. The first that matches counts."""


def error_of_api(path: str, status: int, error: Json) -> Json:
    """Return an error's body in the words of the API that `path` belongs to."""
    return next((convert(status, error) for speaks, convert in _APIS if speaks(path)), error)
