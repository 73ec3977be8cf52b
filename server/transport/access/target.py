"""What a request asks for, decided once: the path below mount point, root path and API prefix, and its endpoint.

`Resolver` decides it in the gateway. Everything behind the gateway reads the `Target`: key scopes, the administration
port, cross-origin checks, limits, the web UI, errors and metric labels. The application gets a scope whose path is the
target's, so the router cannot see another path than the checks did. Nothing else may read ``scope["path"]`` or
``request.url`` (`tests/unit/transport/test_target.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope

from server.transport.access.endpoints import PAGE_FILE, UNKNOWN, Endpoint, endpoint_of

TARGET = "llamapool.target"
"""A key in the ASGI scope of a request: its `Target`."""
_DECODINGS = 3  # a path that is still encoded after so many has no canonical form
_OF_A_MOUNT = ("root_path", "app_root_path", "raw_path", "route", "router", "endpoint", "path_params")
"""Keys of a scope that speak of the application around this one, or of the path as it was received."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one request asks for.

    ``received`` is the whole path, for logs only. ``path`` is what the routes are compared with; it is "" outside the
    API prefix, and for the prefix without a slash (``is_bare``). ``base`` is what a client of this port writes before
    ``path``. ``endpoints`` ends with the endpoint that the router will find. The endpoint that the path means in
    canonical spelling comes first, if that is another one: a request must be allowed to reach both.
    """

    received: str
    method: str
    path: str
    base: str
    endpoints: tuple[Endpoint, ...]
    is_bare: bool = False

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that the router will find, or `UNKNOWN`."""
        return self.endpoints[-1]

    @property
    def is_page(self) -> bool:
        """Whether it is a file of the web UI, or leads to it. No key is needed for these."""
        return self.endpoint is PAGE_FILE

    @property
    def is_administration(self) -> bool:
        """Whether it is for the operator rather than for users of the models."""
        return any(each.is_administration for each in self.endpoints)

    @property
    def changes_server(self) -> bool:
        """Whether it changes models, or what other requests get."""
        return any(each.changes_server for each in self.endpoints)

    @property
    def is_of_this_machine(self) -> bool:
        """Whether a server without keys does this for clients of its own machine only."""
        return any(each.is_of_this_machine for each in self.endpoints)

    def scope(self, received: Scope) -> dict[str, Any]:
        """Return a copy of the `received` scope whose path is this target's."""
        kept = {key: value for key, value in received.items() if key not in _OF_A_MOUNT}
        return {**kept, "path": self.path, "root_path": "", TARGET: self}


class Resolver:
    """Finds the target of requests. `prefix` is the server's API prefix, `is_page` tells the web UI's files.

    `aliases` maps a method and a path to the endpoint's own path, for paths that the operator chose.
    """

    def __init__(
        self,
        prefix: str = "",
        is_page: Callable[[str], bool] = lambda _: False,
        aliases: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._aliases = aliases or {}
        self._prefix = prefix
        self._is_page = is_page

    def target(self, scope: Scope) -> Target:
        """Return the target of an HTTP request, or of a WebSocket, which counts as a POST."""
        received, root = scope["path"], scope.get("root_path", "")
        method, query = scope.get("method", "POST"), scope.get("query_string", b"")
        method = "GET" if method == "HEAD" else method
        local = _local(received, root, self._prefix)
        path = self._aliases.get((method, local or ""), local or "")
        is_page = method == "GET" and (local == "" or (path != "" and self._is_page(path)))
        found = PAGE_FILE if is_page else endpoint_of(method, path, query)
        endpoints: tuple[Endpoint, ...] = (found,)
        if not is_page and (found is UNKNOWN or "{" in found.path):
            meant = self._meant(method, received, root, query)
            endpoints = (found,) if meant in (found, UNKNOWN) else (meant, found)
        mount = root[len(scope.get("app_root_path", root)) :]  # a server's own root path is not on the wire
        return Target(
            received=received,
            method=method,
            path=path,
            base=mount + self._prefix,
            endpoints=endpoints,
            is_bare=local == "",
        )

    def _meant(self, method: str, received: str, root: str, query: bytes) -> Endpoint:
        """Return the endpoint of the canonical spelling, as a proxy might normalize the path. `UNKNOWN` if none."""
        spelt = canonical(received)
        local = None if spelt is None else _local(spelt, canonical(root) or "", canonical(self._prefix) or "")
        return UNKNOWN if local is None else endpoint_of(method, local or "/", query)


def _local(path: str, root: str, prefix: str) -> str | None:
    """Return what follows `root` and `prefix` in `path`, None outside `prefix`.

    A server may leave `root` out of the path (get_route_path in starlette/_utils.py).
    """
    below = _after(root, path)
    return _after(prefix, path if below is None else below)


def _after(base: str, path: str) -> str | None:
    """Return what follows `base`, with its slash; None if `path` is not below it."""
    for each in (base, base.rstrip("/")):
        if path.startswith(each) and path[len(each) : len(each) + 1] in ("", "/"):
            return path[len(each) :]
    return None


def canonical(path: str) -> str | None:
    """Return the spelling that all variants of a path share: decoded, in lower case, without empty and dot segments,
    control characters, backslashes and a last slash. None for what is encoded too often."""
    for _ in range(_DECODINGS):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    else:
        return None
    segments: list[str] = []
    for segment in "".join(filter(str.isprintable, path)).replace("\\", "/").casefold().split("/"):
        name = segment.strip()
        if name == "..":
            del segments[-1:]
        elif name not in ("", "."):
            segments.append(name)
    return "/" + "/".join(segments)
