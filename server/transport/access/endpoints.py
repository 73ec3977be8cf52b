"""What a request is about, by its method and path: the scope that a key needs for it, whether it changes the server."""

from typing import Literal, get_args
from urllib.parse import unquote_to_bytes

Scope = Literal["infer", "slots", "lora", "models", "props", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

_OF_PATH: dict[tuple[str, str], Scope] = {
    ("POST", "/models"): "models",
    ("DELETE", "/models"): "models",
    ("POST", "/models/load"): "models",
    ("POST", "/models/unload"): "models",
    ("POST", "/models/pin"): "models",
    ("POST", "/api/pull"): "models",
    ("DELETE", "/api/delete"): "models",
    ("POST", "/lora-adapters"): "lora",
    ("POST", "/props"): "props",
    ("GET", "/slots"): "slots",
    ("GET", "/page/live"): "metrics",
    ("GET", "/metrics"): "metrics",
    ("GET", "/cors-proxy"): "props",  # it reaches whatever this machine does
    ("POST", "/cors-proxy"): "props",
    ("POST", "/tools"): "props",  # so do they
    ("POST", "/page/bench"): "props",  # and so does this
    ("GET", "/page/log"): "props",
    ("GET", "/page/bodies"): "props",  # what others say
}
_LISTS = ("/models", "/v1/models")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_STEERING = frozenset({"/v1/chat/completions/control", "/v1/streams/lookup"})
_OF_THIS_MACHINE = frozenset(
    {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
)


def scope_of(method: str, path: str, query: bytes = b"") -> Scope | None:
    """The scope of a key that may do this; None where any key will do. `path` is without the server's prefix."""
    method = "GET" if method == "HEAD" else method
    if path.startswith("/slots/"):
        return "slots"
    if method == "GET" and path in _LISTS and b"reload" in unquote_to_bytes(query):
        return "models"
    return _OF_PATH.get((method, path)) or (None if method in _READS else "infer")


def is_work(method: str, path: str) -> bool:
    """Whether it takes of what a key may use; what ends work, or asks what became of it, is open to who is at his
    limit."""
    return method == "POST" and path not in _STEERING and scope_of(method, path) == "infer"


def is_administration(method: str, path: str, query: bytes = b"") -> bool:
    """Whether it is for who runs the server, rather than for who uses its models."""
    return scope_of(method, path, query) not in (None, "infer")


def changes_the_server(method: str, path: str, query: bytes = b"") -> bool:
    """Whether it loads, unloads, fetches or removes models, or sets what other requests get."""
    scope = scope_of(method, path, query)
    return scope in ("models", "lora", "props") or (scope == "slots" and method not in _READS)


def is_of_this_machine(method: str, path: str) -> bool:
    """Whether it downloads a model or deletes its files, has this machine work on something else than models, or tells
    what others do."""
    return ("GET" if method == "HEAD" else method, path) in _OF_THIS_MACHINE
