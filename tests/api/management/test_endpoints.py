"""Management endpoints as a table: for each state of a server, requests with the status and a part of the reply.

Cases that need an action in between, such as a load or a busy slot, are in the file of the endpoint.
"""

from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.api.management.test_models import TWO_MODELS
from tests.support.fakes import FakeLoader

UNLOADED = "model is not loaded"
NOT_FOUND = "not found; known models: b, org/a:Q8"
FAILING = {"a": {"path": "a.gguf", "load": "startup"}, "b": {"path": "b.gguf", "load": "startup"}}
ON_DEMAND = {"a": {"path": "a.gguf", "load": "on_demand"}}
INSTANCES = {"a": {"path": "a.gguf", "load": "startup", "instances": 2}, "b": {"path": "b.gguf", "load": "startup"}}
WITH_EMBEDDING = {"demo": {"path": "d.gguf", "load": "startup"}, "embed": {"path": "e.gguf", "embedding": True}}
LORA = {"lora_name": "x", "lora_path": "x"}
UI_SETTINGS = {"systemMessage": "Be kind.", "temperature": 0.3}
HI = {"messages": [{"role": "user", "content": "Hi"}]}
IDLE = {"status": "ok", "slots_idle": 4, "slots_processing": 0}
ROUTER = {"role": "router", "max_instances": 3, "models_autoload": True}
NO_FLAG = "This server does not support {}. Start it with `--{}`"
NO_SLOTS = {"error": {"message": NO_FLAG.format("slots action", "slot-save-path"), "type": "not_supported_error"}}
KEY = {"Authorization": "Bearer secret"}
DEMO = {"path": "demo.gguf", "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
HEALTHY, CONTROL = "/health?fail_on_no_slot=1", "/v1/chat/completions/control"
UI_FILES = ("/index.html", "/manifest.webmanifest", "/_app/version.json")
OFF = {"error": {"code": 403}}
INVALID, UNSUPPORTED = {"error": {"type": "invalid_request_error"}}, {"error": {"type": "not_supported_error"}}
EMBED_FLAG, RERANK_FLAG = NO_FLAG.format("embeddings", "embeddings"), NO_FLAG.format("reranking", "reranking")
NO_COMPLETIONS = "This server does not support completions. Start it without `--embeddings`"
NO_DOCUMENTS = r"\"documents\" must be a non-empty string array"
RANK = {"query": "q", "documents": ["b", "a", "c"]}
BAD_URLS = ("", "/x", "ftp://host/x", "http://", "http://u:p@host/", "http://host:x/", "http://[::1", "http://h/a%20b")
UNKNOWN_PATHS = ("/%00", "/v1/models/%ff", "/" + "x" * 5000, "/x//", "/v1/models/..%2f..%2fetc")

Row = tuple[Any, ...]
"""Arguments of `Api.expect`: request, body, status, a part of the reply, headers."""
INVALID_INSTANCES: tuple[Any, ...] = ([], {}, {"instances": {}}, {"instances": [HI] * 129})
STATES: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "one model": (
        {},
        [
            ("GET /health", None, 200, IDLE),
            ("GET /v1/health", None, 200, IDLE),
            ("GET /livez", None, 200, {"status": "ok"}),
            ("GET /readyz", None, 200, {"status": "ok"}),
            ("HEAD /health", None, 200, ""),
            ("GET /v1/models/gpt-9", None, 404, "gpt-9"),
            ("POST /models/load", {}, 400, {"error": {"param": "model"}}),
            ("POST /models/load", {"model": ""}, 400, {"error": {"param": "model"}}),
            ("POST /models/load", {"model": 3}, 400, {"error": {"param": "model"}}),
            ("GET /slots?fail_on_no_slot=1", None, 200, "is_processing"),
            ("POST /props", {}, 501, NO_FLAG.format("changing global properties", "props")),
            ("GET /metrics", None, 501, NO_FLAG.format("metrics endpoint", "metrics")),
            *(
                (f"POST /slots/0?action={name}", {"filename": "a"}, 501, NO_SLOTS)
                for name in ("save", "restore", "erase")
            ),
            ("GET /lora-adapters", None, 200, "[]"),
            ("POST /lora-adapters", [], 200, {"success": True}),
            *(
                (f"POST /v1/{verb}_lora_adapter", LORA, 501, "Start it with `--lora-dir`")
                for verb in ("load", "unload")
            ),
        ],
    ),
    "slots endpoint off": (
        {"server": {"slots": False}},
        [("GET /slots", None, 501, NO_FLAG.format("slots endpoint", "slots"))],
    ),
    "two models, one of them loaded": (
        {"models": TWO_MODELS, "server": {"models_max": 3, "metrics": True, "props": True}},
        [
            ("GET /v1/models/org/a:Q8", None, 200, {"id": "org/a:Q8"}),
            ("GET /v1/models/first", None, 200, {"id": "org/a:Q8"}),
            ("GET /v1/models/org%2Fa%3AQ8", None, 200, {"id": "org/a:Q8"}),
            ("GET /v1/models/first:latest", None, 200, {"id": "org/a:Q8"}),
            ("GET /v1/models/gpt-9", None, 404, {"error": {"code": "model_not_found", "param": "model"}}),
            ("POST /models/load", {"model": "gpt-9"}, 404, {"error": {"code": 404, "type": "not_found_error"}}),
            ("POST /models/unload", {"model": "gpt-9"}, 404, NOT_FOUND),
            ("GET /props?model=gpt-9", None, 404, NOT_FOUND),
            ("POST /v1/completions", {"model": "gpt-9", "prompt": "x"}, 404, NOT_FOUND),
            ("POST /props", {"model": "gpt-9"}, 404, NOT_FOUND),
            ("GET /metrics?model=gpt-9", None, 404, NOT_FOUND),
            ("GET /props", None, 200, ROUTER),
            ("GET /slots?model=first", None, 200, '"id":3'),
            ("GET /slots?model=b", None, 400, UNLOADED),
            ("GET /metrics?model=b", None, 200, "llamacpp:n_decode_total 0"),
            ("GET /props?model=b&autoload=false", None, 400, UNLOADED),
            ("POST /v1/chat/completions?autoload=false", {"model": "b", **HI}, 400, UNLOADED),
            ("POST /v1/messages?autoload=false", {"model": "b", "max_tokens": 1, **HI}, 400, UNLOADED),
            ("POST /completion?autoload=false", {"model": "b", "prompt": "Hi"}, 400, UNLOADED),
            ("POST /tokenize?autoload=false", {"model": "b", "content": "Hi"}, 400, UNLOADED),
            ("POST /apply-template?autoload=false", {"model": "b", **HI}, 400, UNLOADED),
            ("POST /api/generate?autoload=false", {"model": "b", "prompt": "Hi"}, 400, UNLOADED),
            ("POST /v1/responses?autoload=false", {"model": "b", "input": "Hi"}, 400, UNLOADED),
            ("POST /props", {"model": "b"}, 200, {"success": True}),
            ("GET /models", None, 200, '"value":"unloaded"'),  # none of these requests loads it
            ("GET /props?model=b", None, 200, {"model_alias": "b"}),
            ("GET /models", None, 200, '"aliases":["b"]'),
        ],
    ),
    "no automatic loads": (
        {"models": TWO_MODELS, "server": {"models_autoload": False}},
        [("GET /props?model=b", None, 400, UNLOADED), ("GET /props?model=b&autoload=1", None, 200, "b.gguf")],
    ),
    "a generative and an embedding model, in router mode": (
        {"models": WITH_EMBEDDING, "server": {"models_max": 3}},
        [
            ("GET /props", None, 200, {**ROUTER, "model_alias": "demo", "total_slots": 4}),
            ("GET /props?model=demo", None, 200, {"model_alias": "demo"}),
        ],
    ),
    "properties that clients may change": (
        {"server": {"props": True}},
        [
            ("POST /props", b"", 200, {"success": True}),
            ("POST /props", {}, 200, {"success": True}),
            ("POST /props", {"model": "demo"}, 200, {"success": True}),
            ("GET /props", None, 200, {"endpoint_props": True}),
            ("POST /props", {"chat_template": "x"}, 400, "chat_template: is not a property that can be changed"),
            ("POST /props", {"model": 1}, 400, "model: must be a string"),
        ],
    ),
    "several instances": (
        {"models": INSTANCES},
        [
            ("GET /health", None, 200, {"slots_idle": 12}),
            ("GET /health?model=a", None, 200, {"slots_idle": 8}),
            ("GET /health?model=b", None, 200, {"slots_idle": 4}),
        ],
    ),
    "no model loaded": (
        {"models": ON_DEMAND},
        [
            ("GET /health?fail_on_no_slot=1", None, 200, {**IDLE, "slots_idle": 0}),
            ("GET /readyz", None, 200, {"status": "ok"}),
        ],
    ),
    "one of two models failed": (
        {"models": FAILING, "failing": {"b": "no such file"}},
        [
            ("GET /health", None, 200, {"status": "ok"}),
            ("GET /health?model=a", None, 200, {"status": "ok"}),
            ("GET /health?model=b", None, 503, "no such file"),
            ("GET /readyz", None, 200, {"status": "ok", "failed": {"b": "no such file"}}),
            ("POST /v1/completions", {"model": "b", "prompt": "x"}, 503, "model 'b' failed to load: no such file"),
            ("GET /models", None, 200, '"failed":true,"exit_code":1,"reason":"no such file"'),
        ],
    ),
    "both models failed": (
        {"models": FAILING, "failing": {"a": "too big", "b": "no such file"}},
        [("GET /readyz", None, 503, "too big"), ("GET /readyz", None, 503, "no such file")],
    ),
    "the only model failed": ({"failing": {"demo": "no such file"}}, [("GET /health", None, 503, "no such file")]),
    "API keys": (
        {"models": FAILING, "failing": {"b": "/secret/path: no such file"}, "server": {"api_keys": ["secret"]}},
        [
            ("GET /health?model=a", None, 401),
            ("GET /health?model=other", None, 401),
            ("GET /health?model=a", None, 200, "", KEY),
            ("GET /health?model=other", None, 404, "", KEY),
            *((f"GET {path}", None, 200, '{"status":"ok"}') for path in ("/health", "/readyz", "/livez", HEALTHY)),
            ("GET /readyz", None, 200, {"failed": {"b": "/secret/path: no such file"}}, KEY),
            ("GET /health", None, 200, {"slots_idle": 4}, KEY),
            *((f"GET {path}", None, 200) for path in ("/", *UI_FILES, "/sw.js", "/favicon.svg")),
            *((f"GET {path}", None, 401) for path in ("/props", "/slots", "/_app/nothing.js", "/tools")),
            ("GET /api/tags", None, 401, {"error": "Invalid API Key"}),
            ("GET /cors-proxy?url=http://127.0.0.1", None, 401),
            ("HEAD /v1/models", None, 401),
            ("HEAD /health", None, 200),
        ],
    ),
    "settings of the web UI": (
        {"server": {"ui_config": UI_SETTINGS}},
        [
            ("GET /page/config", None, 200, {"settings": UI_SETTINGS, "tools": False, "log_bodies": False}),
            ("GET /props", None, 200, {"ui_settings": UI_SETTINGS}),
        ],
    ),
    "no web UI": (
        {"server": {"ui": False}},
        [
            *((f"GET {path}", None, 404) for path in ("/", *UI_FILES)),
            ("HEAD /", None, 200),  # Ollama's clients check whether a server runs
            ("GET /sw.js", None, 200, "unregister"),
            ("GET /props", None, 200, {"ui": False}),
        ],
    ),
    "tools and CORS proxy off": (
        {},
        [
            *((f"{method} {path}", None, 403, OFF) for method in ("GET", "POST") for path in ("/tools", "/cors-proxy")),
            ("GET /props", None, 200, {"cors_proxy_enabled": False}),
        ],
    ),
    "invalid requests": (
        {"server": {"tools": "all", "ui_mcp_proxy": True}},
        [
            ("POST /tools", {}, 400),
            ("POST /tools", {"tool": "get_info", "params": []}, 400),
            ("POST /tools", {"tool": "nothing"}, 404),
            ("POST /tools", {"tool": "read_file"}, 400),
            ("POST /tools", {"tool": "read_file", "params": {"path": None}}, 400, "path: null is not of type 'string'"),
            ("POST /v1/completions", {"prompt": "Hi", "reasoning_control": True}, 400, "reasoning_control"),
            ("POST /tools", {"tool": "read_file", "params": {"path": "a"}, "stream": True}, 404),
            ("POST /tools", {"tool": "get_info", "params": {}}, 501, "", {"x-tool-runtime": "docker:busybox"}),
            ("GET /page/log?after=x", None, 400, '"message":"after: must be a whole number of 0 or more"'),
            ("GET /v1/usage?start=yesterday", None, 400),
            ("GET /v1/usage?end=2026-13-01", None, 400),
            ("GET /v1/usage?format=xml", None, 400),
            (f"POST {CONTROL}", {"action": "reasoning_end"}, 400, "missing completion id"),
            (f"POST {CONTROL}", {"id": "chatcmpl-1", "action": "explode"}, 400, "unknown control action"),
            *((f"GET /cors-proxy?url={url}", None, 400) for url in BAD_URLS),
            ("GET /cors-proxy?url=http://127.0.0.1:1/", None, 503, "127.0.0.1"),
            ("GET /nope", None, 404, '{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),
            *((f"GET {path}", None, 404) for path in UNKNOWN_PATHS),
            ("POST /v1/moderations", {"input": "x"}, 501, ({"error": {"code": "not_supported"}}, "guard model")),
            *(
                (f"GET /v1/{path}?limit={limit}", None, 200 if limit == "100" else 400)
                for path in ("files", "batches", "messages/batches")
                for limit in ("9" * 5000, "0", "-1", "x", "", "100")
            ),
        ],
    ),
    "Ollama's requests": (
        {"models": {"demo": DEMO, "other": {"path": "other.gguf"}}},
        [
            ("POST /api/show", {"model": "llama3"}, 404, "model 'llama3' not found"),
            ("POST /api/show", {"model": 5}, 400, {"error": "model: must be a string"}),
            ("POST /api/show", b"{", 400, '{"error":"'),
            *(
                (f"POST /api/{path}", {"model": "demo"}, 501, f'{{"error":"{path}: this server\'s models')
                for path in ("push", "create", "copy", "blobs/sha256:00")
            ),
            ("HEAD /api/blobs/sha256:00", None, 501),
            ("POST /api/pull", {"model": "demo:latest"}, 200, {"status": "success"}),
            ("POST /api/pull", {"name": "demo", "stream": False}, 200, {"status": "success"}),
            ("POST /api/pull", {"model": "llama3"}, 400, "model: should be owner/name"),
            ("POST /api/pull", {"model": "demo", "stream": "no"}, 400, {"error": "stream: must be a boolean"}),
            ("POST /api/pull", {}, 400, {"error": "model: is required"}),
            ("DELETE /api/delete", {"model": "demo"}, 400, "not removable"),
            ("DELETE /api/delete", {"model": "llama3"}, 404, "model 'llama3' not found"),
        ],
    ),
    "API prefix": (
        {"server": {"api_prefix": "/api"}},
        [
            ("POST /api/api/show", b"{", 400, '{"error":"'),
            ("POST /api/embeddings", b"{", 400, {"error": {"type": "invalid_request_error"}}),
        ],
    ),
    "a generative model": (
        {},
        [
            *(
                (f"POST {path}", body, 501, (UNSUPPORTED, EMBED_FLAG, "`embedding: true` for model 'demo'"))
                for path in ("/embedding", "/embeddings", "/v1/embeddings")
                for body in ({"input": "hi"}, {"input": "hi", "model": "demo"})
            ),
            ("POST /v1/rerank", RANK, 501, (UNSUPPORTED, RERANK_FLAG)),
        ],
    ),
    "a generative model that is not loaded": ({"models": ON_DEMAND}, [("POST /v1/embeddings", {"input": "hi"}, 501)]),
    "an embedding model": (
        {"models": {"e": EMBED}},
        [
            *(
                (f"POST {path}", body, 501, (UNSUPPORTED, NO_COMPLETIONS))
                for path, body in (
                    *(("/v1/chat/completions", HI), ("/v1/chat/completions", HI | {"stream": True})),
                    *(("/v1/completions", {"prompt": "x"}), ("/completion", {"prompt": "x"})),
                    ("/infill", {"input_prefix": "x", "input_suffix": "y"}),
                )
            ),
            ("POST /v1/rerank", RANK, 501, (UNSUPPORTED, RERANK_FLAG)),
            *(
                ("POST /v1/embeddings", body, 400, (INVALID, message))
                for body, message in (
                    ({}, r"\"input\" or \"content\" must be provided"),
                    ({"input": []}, r"\"input\" must not be empty"),
                    ({"input": [[]]}, "Input content cannot be empty"),
                    ({"input": "x", "encoding_format": "hex"}, "The format to return the embeddings in."),
                    ({"input": "x" * 200}, "input (201 tokens) is too large to process. increase the physical batch"),
                    ({"input": "x", "model": ["e"]}, "Field 'model'"),
                    ({"input": [1, 2, 300]}, "token id 300 is outside of the vocabulary"),
                )
            ),
        ],
    ),
    "a generative and an embedding model": (
        {"models": {"demo": DEMO, "e": EMBED}},
        [("POST /v1/rerank", RANK, 501, (UNSUPPORTED, RERANK_FLAG))],
    ),
    "two embedding models": (
        {"models": {"e": EMBED, "f": EMBED}},
        [
            ("POST /v1/embeddings", {"input": "x", "model": "g"}, 404),
            ("POST /v1/embeddings", {"input": "x"}, 200, {"model": "e"}),
        ],
    ),
    "a reranking model": (
        {"models": {"r": {"path": "r.gguf", "load": "startup", "reranking": True}}},
        [
            ("POST /v1/completions", {"prompt": "x"}, 501),
            ("POST /embedding", {"content": "x"}, 200),
            *(
                ("POST /rerank", body, 400, message)
                for body, message in (
                    ({}, r"\"query\" must be provided"),
                    ({"query": "q"}, NO_DOCUMENTS),
                    ({"query": "q", "documents": []}, NO_DOCUMENTS),
                    ({"query": "q", "documents": [1]}, NO_DOCUMENTS),
                    ({"query": "q", "documents": ["x" * 600]}, "exceeds the available context size"),
                    ({"query": "q", "documents": ["a"], "top_n": -1}, "Field 'top_n'"),
                )
            ),
        ],
    ),
    "Vertex AI routes under a prefix": (
        {"server": {"predict_route": "/predict", "health_route": "/alive", "api_prefix": "/llm"}},
        [
            ("POST /llm/predict", {"instances": []}, 200, {"predictions": []}),
            ("POST /llm/predict", {"instances": [{"@requestFormat": "chatCompletions", **HI}]}, 200, '"choices":[{'),
            ("GET /llm/alive", None, 200, {"status": "ok"}),
            ("GET /alive", None, 404),
            *(("POST /llm/predict", body, 400, INVALID) for body in INVALID_INSTANCES),
        ],
    ),
    "no Vertex AI routes": ({}, [("POST /predict", {"instances": []}, 404), ("GET /alive", None, 404)]),
}


@pytest.mark.parametrize("state", STATES)
async def test_management_endpoints(serve: Serve, state: str) -> None:
    settings, rows = STATES[state]
    failing = settings.get("failing", {})
    options = {name: value for name, value in settings.items() if name != "failing"}
    async with serve(FakeLoader(failing=failing), **options) as api:
        for row in rows:
            await api.expect(*row)
