"""Errors as Anthropic's API writes them: ``{"type": "error", "error": {"type", "message"}}``.

The status stays that of every other endpoint; the type follows from it
(https://docs.anthropic.com/en/api/errors).
"""

from typing import Any

from server.dialects.common import Json, typed_event

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_PATH = "/v1/messages"


def speaks_anthropic(path: str) -> bool:
    """Whether the endpoint at `path` (with any prefix) is one of the Messages API."""
    return path.endswith(_PATH) or f"{_PATH}/" in path


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
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_event(status: int, error: Json) -> bytes:
    """The last event of a stream that fails."""
    return typed_event(anthropic_error(status, error))
