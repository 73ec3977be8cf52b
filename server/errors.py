"""Every error that Llamapool raises on purpose, as one small tree. No HTTP in it.

::

    LlamapoolError
    ├── ConfigError              a setting is wrong; stops start-up with one line
    ├── InvalidRequest           the client's request is wrong; names the field
    │   └── ContextExceeded      the prompt does not fit the context
    ├── AuthenticationFailed     no key, or a wrong one
    ├── PermissionDenied         the key does not permit this, or a key is missing
    ├── NotFound                 no such path, model or object
    │   └── ModelNotFound        lists the known models
    ├── NotSupported             this server or model was started without it
    ├── Unavailable              not now
    │   ├── ModelLoading         the only model is being loaded
    │   ├── ModelFailed          loading failed; carries the reason
    │   ├── DownloadFailed       a model could not be had from its hub
    │   ├── ModelEnded           its process ended; it is loaded again, and may be asked again
    │   ├── ModelRestarting      its process is started again in ``retry_after_s`` seconds at most
    │   ├── QueueFull            retry in ``retry_after_s`` seconds
    │   ├── TooLate              it took longer than a request may; retry in ``retry_after_s`` seconds
    │   ├── NoRoom               no memory for this model now; retry in ``retry_after_s`` seconds
    │   └── ShuttingDown         the server is stopping
    └── InternalError            our own fault

`transport.errors` gives each class its status and llama-server's ``type``.
"""

import json
import re

_SHOWN_CHARS = 100
_USER = re.compile(r"(?:(?<=://)|^)[^/?#\s]*@")
MASK = "****"  # a secret, where others may read


def short(words: str) -> str:
    """Return a client's own words as a message repeats them."""
    return words if len(words) <= _SHOWN_CHARS else words[:_SHOWN_CHARS] + "…"


def utf8(path: str) -> str:
    """Return a path or a file name as valid UTF-8."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


def short_json(value: object) -> str:
    """Return a client's value as a message repeats it, as JSON."""
    return short(json.dumps(value, ensure_ascii=False, default=str))


def without_credentials(address: str) -> str:
    """Return the URL with user, password and query values masked, because they may be secrets."""
    place, mark, query = address.partition("?")
    names = [each.partition("=") for each in query.split("&")]
    values = [f"{name}={MASK}" if equals else MASK for name, equals, _ in names] if query else []
    return _USER.sub(f"{MASK}@", place) + mark + "&".join(values)


class LlamapoolError(Exception):
    """Base of the tree. ``message`` is written for the reader of the reply."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(LlamapoolError):
    """A wrong setting: the message names file, key and remedy, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # what it quotes may hold line breaks


class InvalidRequest(LlamapoolError):
    """The request is wrong. ``param`` is the field's path, e.g. ``messages.0.role``, where there is one.

    ``code`` is OpenAI's code for the error, "" for none.
    """

    def __init__(self, message: str, param: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def invalid(path: str, reason: str) -> InvalidRequest:
    """Return the error of the field at `path`, with which its message begins."""
    return InvalidRequest(f"{path}: {reason}", path)


class ContextExceeded(InvalidRequest):
    """The prompt has more tokens than a slot's context (llama.cpp server-context.cpp, same two counts)."""

    def __init__(self, n_prompt_tokens: int, n_ctx: int, message: str = "", more: str = "") -> None:
        super().__init__(
            message
            or f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
            f"try increasing it{more}"
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class AuthenticationFailed(LlamapoolError):
    """No API key, or a wrong one."""


class PermissionDenied(LlamapoolError):
    """The key that was given, or a client without one, may not do this."""


class NotFound(LlamapoolError):
    """No such path or object."""


class ModelNotFound(NotFound):
    """No model of that id or alias; the message lists the known ones."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"model '{short(name)}' not found; known models: {', '.join(sorted(known)) or 'none'}")
        self.name = name


class NotSupported(LlamapoolError):
    """This server or this model was started without the feature; the message says how to get it."""


class Unavailable(LlamapoolError):
    """Not now; the message says why. ``retry_after_s``: seconds until a retry is worthwhile, 0 = unknown. The message
    ends with those that are passed here.
    """

    retry_after_s: int = 0

    def __init__(self, message: str, retry_after_s: int = 0) -> None:
        super().__init__(f"{message}, retry in {retry_after_s} s" if retry_after_s else message)
        self.retry_after_s = retry_after_s or self.retry_after_s


class ModelLoading(Unavailable):
    """A model is being loaded and this caller does not wait for it."""

    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("Loading model")


class ModelFailed(Unavailable):
    """A model could not be loaded; the message carries the reason."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model '{model}' failed to load: {reason}")
        self.model = model
        self.reason = reason


class DownloadFailed(Unavailable):
    """A model's files could not be had: the hub, the network, the disk, or a sum that is wrong."""


class ModelEnded(Unavailable):
    """A model's process ended under a request, which is at fault or not."""

    retry_after_s = 1


class ModelRestarting(Unavailable):
    """A model's process that has ended several times is started again, but not at once."""

    def __init__(self, model: str, reason: str, retry_after_s: int) -> None:
        super().__init__(f"model '{model}' restarts within {retry_after_s} s: {reason}")
        self.retry_after_s = retry_after_s


class QueueFull(Unavailable):
    """As much waits or is open as there may be; the message says what, and which option limits it, if one does.
    `outcome` names it in logs and metrics.
    """

    def __init__(self, message: str, retry_after_s: int = 0, outcome: str = "queue_full") -> None:
        super().__init__(message, retry_after_s)
        self.outcome = outcome


def request_queue_full(n_queued: int, retry_after_s: int) -> QueueFull:
    """Return the error of a request that a model's queue does not take."""
    return QueueFull(f"the request queue is full ({n_queued} waiting, limited by max_queue)", retry_after_s)


class TooLate(Unavailable):
    """The server's own limit of time for a request is over."""


class NoRoom(Unavailable):
    """The models in memory are at work, and this one waited for its place for too long."""

    def __init__(self, model: str, waited_s: float, retry_after_s: int) -> None:
        super().__init__(
            f"model '{model}' waited {waited_s:.0f} s for memory; the other models are busy", retry_after_s
        )


class ShuttingDown(Unavailable):
    """The server, or the request's model, is going away."""

    retry_after_s = 5

    def __init__(self, what: str = "server") -> None:
        super().__init__(f"the {what} is shutting down")


class InternalError(LlamapoolError):
    """Our own fault, or the library's; nothing the client could have done. ``reason``: see `unexpected`."""

    reason = ""


def unexpected(error: BaseException) -> InternalError:
    """Return the error that a client gets for one that is none of ours. Its ``reason`` has the text of `error`, which
    may quote files, so it is for the log and for the reason of a failed load.
    """
    if isinstance(error, ImportError):
        package = f"'{error.name}'" if error.name else "a package"  # numpy gives no name, for one
        found = InternalError(f"the server cannot import {package}; install Llamapool's packages again")
    else:
        found = InternalError("internal server error; the server's log has the details")
    found.reason = f"{type(error).__name__}: {error}"
    return found


class NotNumbers(InternalError):
    """The model computed logits that are not numbers, of this sequence or over what another one left in the cells."""

    def __init__(self) -> None:
        super().__init__("the model computed non-finite logits")


CONTAINED: tuple[type[Exception], ...] = (LlamapoolError, MemoryError)
"""Errors that end one request, batch or cache entry while all others continue. `MemoryError`: it was too large."""
