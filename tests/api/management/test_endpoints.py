"""Management endpoints as a table: for a server in some state, requests and what each reply has at least.

What needs a step in between (a load, a busy slot) is in the endpoint's own file.
"""

from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.api.management.test_models import TWO
from tests.support.fakes import FakeLoader

UNLOADED = "model is not loaded"
NOT_FOUND = "not found; known models: b, org/a:Q8"
BAD = {"a": {"path": "a.gguf", "load": "startup"}, "b": {"path": "b.gguf", "load": "startup"}}
LATER = {"a": {"path": "a.gguf", "load": "on_demand"}}
SUMMED = {"a": {"path": "a.gguf", "load": "startup", "instances": 2}, "b": {"path": "b.gguf", "load": "startup"}}
EMBEDS = {"demo": {"path": "d.gguf", "load": "startup"}, "embed": {"path": "e.gguf", "embedding": True}}
HI = {"messages": [{"role": "user", "content": "Hi"}]}
IDLE = {"status": "ok", "slots_idle": 4, "slots_processing": 0}
ROUTER = {"role": "router", "max_instances": 3, "models_autoload": True}
NO_FLAG = "This server does not support {}. Start it with `--{}`"

Row = tuple[str, str, Any, int, Any]
"""Method, path, body, status, and a part of the reply: of its JSON, or of its text."""
STATES: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "one model": (
        {},
        [
            ("GET", "/health", None, 200, IDLE),
            ("GET", "/v1/health", None, 200, IDLE),
            ("GET", "/livez", None, 200, {"status": "ok"}),
            ("GET", "/readyz", None, 200, {"status": "ok"}),
            ("HEAD", "/health", None, 200, ""),
            ("GET", "/v1/models/gpt-9", None, 404, "gpt-9"),
            ("POST", "/models/load", {}, 400, {"error": {"param": "model"}}),
            ("POST", "/models/load", {"model": ""}, 400, {"error": {"param": "model"}}),
            ("POST", "/models/load", {"model": 3}, 400, {"error": {"param": "model"}}),
            ("GET", "/slots?fail_on_no_slot=1", None, 200, "is_processing"),
            ("POST", "/props", {}, 501, NO_FLAG.format("changing global properties", "props")),
            ("GET", "/metrics", None, 501, NO_FLAG.format("metrics endpoint", "metrics")),
            ("GET", "/lora-adapters", None, 200, "[]"),
            ("POST", "/lora-adapters", [], 200, {"success": True}),
        ],
    ),
    "no slots": (
        {"server": {"slots": False}},
        [("GET", "/slots", None, 501, NO_FLAG.format("slots endpoint", "slots"))],
    ),
    "two models, one of them loaded": (
        {"models": TWO, "server": {"models_max": 3, "metrics": True, "props": True}},
        [
            ("GET", "/v1/models/org/a:Q8", None, 200, {"id": "org/a:Q8"}),
            ("GET", "/v1/models/first", None, 200, {"id": "org/a:Q8"}),
            ("GET", "/v1/models/org%2Fa%3AQ8", None, 200, {"id": "org/a:Q8"}),
            ("GET", "/v1/models/gpt-9", None, 404, {"error": {"code": "model_not_found", "param": "model"}}),
            ("POST", "/models/load", {"model": "gpt-9"}, 404, {"error": {"code": 404, "type": "not_found_error"}}),
            ("POST", "/models/unload", {"model": "gpt-9"}, 404, NOT_FOUND),
            ("GET", "/props?model=gpt-9", None, 404, NOT_FOUND),
            ("POST", "/v1/completions", {"model": "gpt-9", "prompt": "x"}, 404, NOT_FOUND),
            ("POST", "/props", {"model": "gpt-9"}, 404, NOT_FOUND),
            ("GET", "/metrics?model=gpt-9", None, 404, NOT_FOUND),
            ("GET", "/props", None, 200, ROUTER),
            ("GET", "/slots?model=first", None, 200, '"id":3'),
            ("GET", "/slots?model=b", None, 400, UNLOADED),
            ("GET", "/metrics?model=b", None, 200, "llamacpp:n_decode_total 0"),
            ("GET", "/props?model=b&autoload=false", None, 400, UNLOADED),
            ("POST", "/v1/chat/completions?autoload=false", {"model": "b", **HI}, 400, UNLOADED),
            ("POST", "/v1/messages?autoload=false", {"model": "b", "max_tokens": 1, **HI}, 400, UNLOADED),
            ("POST", "/completion?autoload=false", {"model": "b", "prompt": "Hi"}, 400, UNLOADED),
            ("POST", "/tokenize?autoload=false", {"model": "b", "content": "Hi"}, 400, UNLOADED),
            ("POST", "/apply-template?autoload=false", {"model": "b", **HI}, 400, UNLOADED),
            ("POST", "/api/generate?autoload=false", {"model": "b", "prompt": "Hi"}, 400, UNLOADED),
            ("POST", "/v1/responses?autoload=false", {"model": "b", "input": "Hi"}, 400, UNLOADED),
            ("POST", "/props", {"model": "b"}, 200, {"success": True}),
            ("GET", "/models", None, 200, '"value":"unloaded"'),  # none of the above has loaded it
            ("GET", "/props?model=b", None, 200, {"model_alias": "b"}),
            ("GET", "/models", None, 200, '"aliases":["b"]'),
        ],
    ),
    "models that load only if asked to": (
        {"models": TWO, "server": {"models_autoload": False}},
        [("GET", "/props?model=b", None, 400, UNLOADED), ("GET", "/props?model=b&autoload=1", None, 200, "b.gguf")],
    ),
    "a model that generates beside one that does not": (
        {"models": EMBEDS, "server": {"models_max": 3}},
        [
            ("GET", "/props", None, 200, {**ROUTER, "model_alias": "demo", "total_slots": 4}),
            ("GET", "/props?model=demo", None, 200, {"model_alias": "demo"}),
        ],
    ),
    "properties that may be changed": (
        {"server": {"props": True}},
        [
            ("POST", "/props", b"", 200, {"success": True}),
            ("POST", "/props", {}, 200, {"success": True}),
            ("POST", "/props", {"model": "demo"}, 200, {"success": True}),
            ("GET", "/props", None, 200, {"endpoint_props": True}),
            ("POST", "/props", {"chat_template": "x"}, 400, "chat_template: is not a property that can be changed"),
            ("POST", "/props", {"model": 1}, 400, "model: must be a string"),
        ],
    ),
    "several instances": (
        {"models": SUMMED},
        [
            ("GET", "/health", None, 200, {"slots_idle": 12}),
            ("GET", "/health?model=a", None, 200, {"slots_idle": 8}),
            ("GET", "/health?model=b", None, 200, {"slots_idle": 4}),
        ],
    ),
    "nothing loaded": (
        {"models": LATER},
        [
            ("GET", "/health?fail_on_no_slot=1", None, 200, {**IDLE, "slots_idle": 0}),
            ("GET", "/readyz", None, 200, {"status": "ok"}),
        ],
    ),
    "one of two failed": (
        {"models": BAD, "failing": {"b": "no such file"}},
        [
            ("GET", "/health", None, 200, {"status": "ok"}),
            ("GET", "/health?model=a", None, 200, {"status": "ok"}),
            ("GET", "/health?model=b", None, 503, "no such file"),
            ("GET", "/readyz", None, 200, {"status": "ok", "failed": {"b": "no such file"}}),
            ("POST", "/v1/completions", {"model": "b", "prompt": "x"}, 503, "model 'b' failed to load: no such file"),
            ("GET", "/models", None, 200, '"failed":true,"exit_code":1,"reason":"no such file"'),
        ],
    ),
    "both failed": (
        {"models": BAD, "failing": {"a": "too big", "b": "no such file"}},
        [("GET", "/readyz", None, 503, "too big"), ("GET", "/readyz", None, 503, "no such file")],
    ),
    "the only one failed": (
        {"failing": {"demo": "no such file"}},
        [("GET", "/health", None, 503, "no such file")],
    ),
}


def has(found: Any, part: Any) -> bool:
    """Whether every key of `part`, at any depth, is in `found` with its value."""
    if isinstance(part, dict):
        return isinstance(found, dict) and all(key in found and has(found[key], part[key]) for key in part)
    return bool(found == part)


@pytest.mark.parametrize("state", STATES)
async def test_replies_of_a_server(serve: Serve, state: str) -> None:
    settings, rows = STATES[state]
    settings = dict(settings)
    failing = settings.pop("failing", {})
    async with serve(FakeLoader(failing=failing), wait=False, **settings) as api:
        await api.settled()
        for method, path, body, status, part in rows:
            sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
            reply = await api.client.request(method, path, **(sent if body is not None else {}))
            assert reply.status_code == status, (path, body, reply.text)
            if isinstance(part, str):
                assert part in reply.text, (path, body, reply.text)
            else:
                assert has(reply.json(), part), (path, body, reply.text)
