"""Every endpoint and the key scope it needs. Key scopes, the administration port, cross-origin checks and key limits
read only this table. A path that is missing here is `UNKNOWN` and needs a key with every scope, so a forgotten
endpoint is closed. `tests/unit/transport/test_endpoints.py` compares the table with the routes.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import unquote_to_bytes

Scope = Literal["infer", "slots", "lora", "models", "props", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Need = Scope | Literal["nothing", "any key", "every scope"]

_NEEDS: Final[dict[Need, dict[str, str]]] = {
    "nothing": {  # a load balancer and a kubelet have no key, nor has a browser for a page's files
        "GET": "/ /health /v1/health /livez /readyz /openapi.json /docs"
        " /docs/swagger-ui-bundle.js /docs/swagger-ui.css /docs/favicon-32x32.png",
    },
    "any key": {
        "GET": "/models /v1/models /models/sse /v1/models/{model_id:path} /props /lora-adapters /tokenizer_info"
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
    "slots": {"GET": "/slots", "POST": "/slots/{id_slot}"},
    "lora": {"POST": "/lora-adapters"},
    "models": {
        "POST": "/models /models/load /models/unload /models/pin /api/pull",
        "DELETE": "/models /api/delete",
    },
    "props": {  # the last ones reach whatever this machine reaches, or show what other clients send
        "GET": "/cors-proxy /page/log /page/bodies",
        "POST": "/props /cors-proxy /tools /page/bench",
    },
    "metrics": {"GET": "/metrics /page/live"},
}
_STEERING = frozenset({"/v1/chat/completions/control", "/v1/streams/lookup"})
_OF_THIS_MACHINE = frozenset(
    {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path, as the routes have it: ``/v1/models/{model_id:path}``."""

    method: str
    path: str
    need: Need

    @property
    def is_work(self) -> bool:
        """Whether the limits of a key count it. Stopping work and asking for its state stay open at the limit."""
        steers = self.path in _STEERING or self.path.endswith("/cancel")
        return self.method == "POST" and self.need == "infer" and not steers

    @property
    def is_administration(self) -> bool:
        """Whether it is for the operator rather than for users of the models."""
        return self.need not in ("nothing", "any key", "infer")

    @property
    def changes_server(self) -> bool:
        """Whether it loads, unloads, downloads or removes models, or changes defaults of other requests."""
        return self.need in ("models", "lora", "props", "every scope") or (
            self.need == "slots" and self.method != "GET"
        )

    @property
    def is_of_this_machine(self) -> bool:
        """Whether it downloads or deletes model files, runs programs, or shows other clients' data."""
        return (self.method, self.path) in _OF_THIS_MACHINE


UNKNOWN = Endpoint("", "", "every scope")
"""The endpoint of paths that are not in the table."""
PAGE_FILE = Endpoint("GET", "/{file}", "nothing")
"""A file of the web UI, at whatever path."""
ENDPOINTS = tuple(
    Endpoint(method, path, need)
    for need, by_method in _NEEDS.items()
    for method, paths in by_method.items()
    for path in paths.split()
)
OPEN_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.need == "nothing")
_RELOADS = {path: Endpoint("GET", path, "models") for path in ("/models", "/v1/models")}
_FIXED = {(each.method, each.path): each for each in ENDPOINTS if "{" not in each.path}


def _pattern(path: str) -> re.Pattern[str]:
    """Compile a path with parameters. ``{name}`` is one segment, ``{name:path}`` any rest."""
    literal = re.escape(path)
    literal = re.sub(r"\\{\w+:path\\}", ".*", literal)
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", literal), re.DOTALL)


_PATTERNS = [(each.method, _pattern(each.path), each) for each in ENDPOINTS if "{" in each.path]


def endpoint_of(method: str, path: str, query: bytes = b"") -> Endpoint:
    """Return the endpoint that serves `path`, compared letter by letter as the router does; `UNKNOWN` if none does."""
    method = "GET" if method == "HEAD" else method
    fixed = _FIXED.get((method, path))
    if fixed is None:
        return next((each for of, pattern, each in _PATTERNS if of == method and pattern.fullmatch(path)), UNKNOWN)
    if method == "GET" and path in _RELOADS and b"reload" in unquote_to_bytes(query):
        return _RELOADS[path]
    return fixed
