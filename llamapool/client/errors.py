"""Every error that the client raises, as one small tree.

::

    LlamaCppError
    ├── ServerUnreachable        no connection, or it broke off
    │   └── RequestTimedOut      no answer within ``timeout`` seconds
    ├── UnexpectedReply          an answer that this endpoint does not give: another program, or a cut stream
    └── ApiError                 the server said no: ``status``, ``message``, ``type``, ``body``
        ├── BadRequest           400, 413, 422: the message names the field
        ├── AuthenticationFailed 401, 403
        ├── NotFound             404: no such path or model
        ├── NotSupported         501: the message says what to start the server with
        └── Unavailable          429, 503: not now; ``retry_after_s`` where the server says when
"""

from collections.abc import Mapping
from typing import Any

_SHOWN_CHARS = 300  # of a body that is no JSON


class LlamaCppError(Exception):
    """Base of the tree."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ServerUnreachable(LlamaCppError):
    """No connection, or it broke off before the reply was complete."""


class RequestTimedOut(ServerUnreachable):
    """Nothing came within the client's ``timeout``."""


class UnexpectedReply(LlamaCppError):
    """The reply is not what llama-server answers here; ``body`` is what came instead."""

    def __init__(self, message: str, body: Any = None) -> None:
        super().__init__(message)
        self.body = body


class ApiError(LlamaCppError):
    """The server answered with an error, or put one into a stream that had begun.

    ``type`` is llama-server's word for it (``invalid_request_error``), "" where there is none; ``body`` the parsed
    JSON, or the text of a reply that is none.
    """

    def __init__(self, status: int, message: str, type: str, body: Any, retry_after_s: float | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.status = status
        self.type = type
        self.body = body
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.type}: {self.message}" if self.type else f"{self.status}: {self.message}"


class BadRequest(ApiError):
    """The request is wrong."""


class AuthenticationFailed(ApiError):
    """No API key, or a wrong one."""


class NotFound(ApiError):
    """No such path, or no such model."""


class NotSupported(ApiError):
    """This server, or this model, was started without it."""


class Unavailable(ApiError):
    """Not now: the model is loading, the queue is full, or every slot is busy."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    403: AuthenticationFailed,
    404: NotFound,
    413: BadRequest,
    422: BadRequest,
    429: Unavailable,
    501: NotSupported,
    503: Unavailable,
}


_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "not_supported_error": 501,
    "unavailable_error": 503,
}


def api_error(status: int | None, body: Any, retry_after: str | None = None) -> ApiError:
    """Return the error for a reply with `status` and `body`. None: an error inside a stream.

    Reads ``{"error": {"code", "message", "type"}}``, ``{"error": text}``, ``{"message": text}`` and plain text. Inside
    a stream, whose status was a success, ``code`` is the status if it is a number; otherwise ``type`` says it.
    """
    said = body.get("error", body) if isinstance(body, Mapping) else body
    details = said if isinstance(said, Mapping) else {}
    if status is None:
        code = details.get("code")
        by_type = _STATUS_OF_TYPE.get(str(details.get("type")), 500)
        status = code if isinstance(code, int) and not isinstance(code, bool) else by_type
    message = str(details.get("message") or _shown(said) or "no message")
    kind = _BY_STATUS.get(status, ApiError)
    return kind(status, message, str(details.get("type") or ""), body, _seconds(retry_after))


def _shown(said: Any) -> str:
    """Return the text of an error that has no ``message``."""
    text = str(said or "").strip()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _seconds(retry_after: str | None) -> float | None:
    """Return ``Retry-After`` in seconds; dates are ignored (RFC 9110, 10.2.3)."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
