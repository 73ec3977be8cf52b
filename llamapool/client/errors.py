"""The tree of errors that the client raises.

::

    LlamaCppError
    ├── ServerUnreachable        no connection, or it broke
    │   └── RequestTimedOut      no data within ``timeout`` seconds
    ├── UnexpectedReply          not a reply of this endpoint: another program, or a truncated stream
    └── ApiError                 the server sent an error: ``status``, ``message``, ``type``, ``body``
        ├── BadRequest           400, 413, 422: the message names the field
        ├── AuthenticationFailed 401, 403
        ├── NotFound             404: no such path or model
        ├── NotSupported         501: the message names the required option of the server
        └── Unavailable          429, 503: temporary; ``retry_after_s`` if the server sends it
"""

from collections.abc import Mapping
from typing import Any

_SHOWN_CHARS = 300  # of a body that is not JSON


class LlamaCppError(Exception):
    """Base class of all errors of the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ServerUnreachable(LlamaCppError):
    """There is no connection, or it broke before the reply was complete."""


class RequestTimedOut(ServerUnreachable):
    """No data arrived within the client's ``timeout``."""


class UnexpectedReply(LlamaCppError):
    """The reply is not in the format of this endpoint. ``body``: the received reply."""

    def __init__(self, message: str, body: Any = None) -> None:
        super().__init__(message)
        self.body = body


class ApiError(LlamaCppError):
    """The server replied with an error, or sent one in a stream.

    ``type`` is llama-server's error type, such as ``invalid_request_error``, or "". ``body`` is the parsed JSON, or the
    text of a reply that is not JSON.
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
    """The request is invalid."""


class AuthenticationFailed(ApiError):
    """The API key is missing or wrong."""


class NotFound(ApiError):
    """The path or the model does not exist."""


class NotSupported(ApiError):
    """The server or the model was started without this feature."""


class Unavailable(ApiError):
    """Temporarily unavailable: the model is loading, the queue is full, or all slots are busy."""


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

    Supports ``{"error": {"code", "message", "type"}}``, ``{"error": text}``, ``{"message": text}`` and plain text. In a
    stream, the status is ``code`` if it is a number; otherwise it follows from ``type``.
    """
    error = body.get("error", body) if isinstance(body, Mapping) else body
    details = error if isinstance(error, Mapping) else {}
    if status is None:
        code = details.get("code")
        by_type = _STATUS_OF_TYPE.get(str(details.get("type")), 500)
        status = code if isinstance(code, int) and not isinstance(code, bool) else by_type
    message = str(details.get("message") or _text(error) or "no message")
    kind = _BY_STATUS.get(status, ApiError)
    return kind(status, message, str(details.get("type") or ""), body, _seconds(retry_after))


def _text(error: Any) -> str:
    """Return the text of an error that has no ``message``."""
    text = str(error or "").strip()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _seconds(retry_after: str | None) -> float | None:
    """Return ``Retry-After`` in seconds; dates are ignored (RFC 9110, 10.2.3)."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
