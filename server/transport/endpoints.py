"""Resolve a request to an endpoint, and say which key scope each endpoint needs.

`ENDPOINTS` is the only table of endpoints. Key scopes, the administration port, cross-origin checks and key limits read
it. A missing path is `UNKNOWN`: it needs a key with every scope, and is then answered with 404. So a forgotten endpoint
is closed, and no variant of a path reaches another endpoint.

`Resolver` removes the mount point, root path and API prefix from a path, once, in the middleware. All later code reads
the `Target`, and the router gets the target's path. Nothing else may read ``scope["path"]`` or ``request.url``
(`tests/unit/transport/test_target.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import quote, unquote_to_bytes

from starlette.routing import compile_path
from starlette.types import Scope

KeyScope = Literal["infer", "slots", "lora", "models", "props", "metrics"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
Need = KeyScope | Literal["nothing", "any key", "every scope"]

_NEEDS: Final[dict[Need, dict[str, str]]] = {
    "nothing": {  # load balancers, kubelets and browsers that load the web UI send no key
        "GET": "/ /health /v1/health /livez /readyz /openapi.json /docs"
        " /docs/swagger-ui-bundle.js /docs/swagger-ui.css /docs/favicon-32x32.png",
    },
    "any key": {
        "GET": "/models /v1/models /models/sse /v1/models/{model_id:path} /props /lora-adapters /tokenizer_info"
        " /v1/usage"
        " /v1/stream /responses/{response_id} /v1/responses/{response_id} /tools /page/config"
        " /responses/{response_id}/input_items /v1/responses/{response_id}/input_items"
        " /v1/conversations/{conversation_id} /v1/conversations/{conversation_id}/items"
        " /v1/conversations/{conversation_id}/items/{item_id}"
        " /v1/files /v1/files/{file_id} /v1/files/{file_id}/content /v1/batches /v1/batches/{batch_id}"
        " /v1/messages/batches /v1/messages/batches/{batch_id} /v1/messages/batches/{batch_id}/results"
        " /api/version /api/tags /api/ps /api/blobs/{digest}",
    },
    "infer": {
        "POST": "/chat/completions /v1/chat/completions /v1/chat/completions/control /apply-template"
        " /chat/completions/input_tokens /v1/chat/completions/input_tokens"
        " /v1/messages /v1/messages/count_tokens"
        " /responses /v1/responses /responses/input_tokens /v1/responses/input_tokens /v1/streams/lookup"
        " /responses/compact /v1/responses/compact"
        " /responses/{response_id}/cancel /v1/responses/{response_id}/cancel"
        " /v1/conversations /v1/conversations/{conversation_id} /v1/conversations/{conversation_id}/items"
        " /v1/files /v1/batches /v1/batches/{batch_id}/cancel"
        " /v1/messages/batches /v1/messages/batches/{batch_id}/cancel"
        " /completion /completions /v1/completions /infill /tokenize /detokenize"
        " /embedding /embeddings /v1/embeddings /rerank /reranking /v1/rerank /v1/reranking /v2/rerank /v1/moderations"
        " /audio/transcriptions /v1/audio/transcriptions /v1/audio/translations /predict"
        " /api/show /api/chat /api/generate /api/embed /api/embeddings"
        " /api/copy /api/create /api/push /api/blobs/{digest}",
        "DELETE": "/v1/stream /responses/{response_id} /v1/responses/{response_id}"
        " /v1/conversations/{conversation_id} /v1/conversations/{conversation_id}/items/{item_id}"
        " /v1/files/{file_id} /v1/messages/batches/{batch_id}",
    },
    "slots": {"GET": "/slots", "POST": "/slots/{id_slot} /cache/reset /cache/pin"},
    "lora": {"POST": "/lora-adapters /v1/load_lora_adapter /v1/unload_lora_adapter"},
    "models": {
        "POST": "/models /models/load /models/unload /models/pin /api/pull",
        "DELETE": "/models /api/delete",
    },
    "props": {  # some reach every host that this machine can reach, or show other clients' data
        "GET": "/cors-proxy /page/log /page/bodies",
        "POST": "/props /cors-proxy /tools /page/bench",
    },
    "metrics": {"GET": "/metrics /page/live"},
}
_CONTROL = frozenset({"/v1/chat/completions/control", "/v1/streams/lookup"})
_LOCAL_ONLY = frozenset(
    {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path as in the routes, such as ``/v1/models/{model_id:path}``."""

    method: str
    path: str
    need: Need

    @property
    def is_work(self) -> bool:
        """Whether the limits of a key count it. Requests that cancel work or query its state are never limited."""
        is_control = self.path in _CONTROL or self.path.endswith("/cancel")
        return self.method == "POST" and self.need == "infer" and not is_control

    @property
    def is_administration(self) -> bool:
        """Whether it is for operators rather than for users of the models."""
        return self.need not in ("nothing", "any key", "infer")

    @property
    def changes_server(self) -> bool:
        """Whether it loads, unloads, downloads or removes models, or changes defaults of other requests."""
        return self.need in ("models", "lora", "props", "every scope") or (
            self.need == "slots" and self.method != "GET"
        )

    @property
    def is_local_only(self) -> bool:
        """Whether it downloads or deletes model files, runs programs, or shows other clients' data."""
        return (self.method, self.path) in _LOCAL_ONLY


UNKNOWN = Endpoint("", "", "every scope")
"""The endpoint of paths that are not in the table."""
PAGE_FILE = Endpoint("GET", "/{file}", "nothing")
"""A file of the web UI, at any path."""
ENDPOINTS = tuple(
    Endpoint(method, path, need)
    for need, by_method in _NEEDS.items()
    for method, paths in by_method.items()
    for path in paths.split()
)
OPEN_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.need == "nothing")
_RELOADS = {path: Endpoint("GET", path, "models") for path in ("/models", "/v1/models")}
_FIXED = {(each.method, each.path): each for each in ENDPOINTS if "{" not in each.path}
_FIXED_PATHS = frozenset(path for _, path in _FIXED)


_PATTERNS = [(each.method, compile_path(each.path)[0], each) for each in ENDPOINTS if "{" in each.path]


def endpoint_of(method: str, path: str, query: bytes = b"") -> Endpoint:
    """Return the endpoint that serves `path`, compared exactly as in the router; `UNKNOWN` if there is none.

    A path without parameters never matches a pattern: ``/v1/responses/compact`` is not a stored response.
    """
    method = "GET" if method == "HEAD" else method
    fixed = _FIXED.get((method, path))
    if fixed is None:
        if path in _FIXED_PATHS:
            return UNKNOWN
        return next((each for verb, pattern, each in _PATTERNS if verb == method and pattern.fullmatch(path)), UNKNOWN)
    if method == "GET" and path in _RELOADS and b"reload" in unquote_to_bytes(query):
        return _RELOADS[path]
    return fixed


def methods_of(path: str) -> list[str]:
    return [method for method in ("GET", "HEAD", "POST", "DELETE") if endpoint_of(method, path) is not UNKNOWN]


TARGET = "llamapool.target"
"""A key in the ASGI scope of a request: its `Target`."""
_MOUNT_KEYS = (
    *("root_path", "app_root_path", "raw_path", "route", "router", "endpoint", "path_params"),
    "starlette.exception_handlers",
)
"""Keys of a scope that describe the outer application or the received path."""


@dataclass(frozen=True, slots=True)
class Target:
    """The path and endpoint of one request.

    ``received`` is the whole path, for logs only. ``path`` is the part that endpoints are compared with. It is ""
    outside the API prefix, and for the prefix without a slash (``is_bare``). ``base`` is the part before ``path`` in
    URLs of this port. ``endpoint`` may be `UNKNOWN`.
    """

    received: str
    method: str
    path: str
    base: str
    endpoint: Endpoint
    is_bare: bool = False

    @property
    def is_page(self) -> bool:
        """Whether it is a file of the web UI, or redirects to it. These need no key."""
        return self.endpoint is PAGE_FILE

    def scope(self, received: Scope) -> dict[str, Any]:
        """Return a copy of the `received` scope whose path is this target's."""
        copied = {key: value for key, value in received.items() if key not in _MOUNT_KEYS}
        return {**copied, "path": self.path, "root_path": "", TARGET: self}


_UNENCODED = "/!$&'()*+,;=:@"  # in a path, besides what `quote` leaves (RFC 3986, pchar)


class Resolver:
    """Resolves requests to targets. `prefix` is the API prefix, `is_page` recognizes the web UI's files.

    `aliases` maps a method and a path to the endpoint's own path, for paths that the operator chose.
    """

    def __init__(
        self,
        prefix: str = "",
        is_page: Callable[[str], bool] = lambda _: False,
        aliases: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._aliases = aliases or {}
        self._prefix, self._sent_prefix = prefix, quote(prefix, safe=_UNENCODED)
        self._is_page = is_page

    def target(self, scope: Scope) -> Target:
        """Return the target of an HTTP request, or of a WebSocket, which counts as a POST.

        Only parameters of a path may be percent-encoded, and names of the web UI's files: otherwise ``/%6detrics``
        would bypass a proxy's rule for ``/metrics``.
        """
        received, root = scope["path"], scope.get("root_path", "")
        method, query = scope.get("method", "POST"), scope.get("query_string", b"")
        method = "GET" if method == "HEAD" else method
        local = _local(received, root, self._prefix)
        path = self._own_path(method, local)
        is_page = method == "GET" and (local == "" or (path != "" and self._is_page(path)))
        endpoint = PAGE_FILE if is_page else endpoint_of(method, path, query)
        sent: bytes = scope.get("raw_path") or b""
        if b"%" in sent and not is_page:
            sent_local = _local(sent.decode("latin-1"), root, self._sent_prefix)
            if endpoint_of(method, self._own_path(method, sent_local), query) is not endpoint:
                path, endpoint = "", UNKNOWN
        mount = root[len(scope.get("app_root_path", root)) :]  # clients do not send the server's own root path
        return Target(
            received=received,
            method=method,
            path=path,
            base=mount + self._prefix,
            endpoint=endpoint,
            is_bare=local == "",
        )

    def _own_path(self, method: str, local: str | None) -> str:
        return self._aliases.get((method, local or ""), local or "")


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
