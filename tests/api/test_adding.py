"""The code blocks of docs/adding.md that add a dialect, executed and served over a fake model."""

import re
import sys
from types import ModuleType

import pytest

from server.transport import endpoints
from tests.api.conftest import Serve
from tests.api.streams import native_events
from tests.support.fakes import FakeLoader
from tests.support.real_server import ROOT

BLOCK = re.compile(r"```python\n# (server/\S+)\.py\n(.*?)```", re.DOTALL)
IMPORT_ORDER = ("server/dialects/tgi", "server/routes/tgi")


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Execute the page's two files. Return the module with the route."""
    files = dict(BLOCK.findall((ROOT / "docs" / "adding.md").read_text()))
    assert set(IMPORT_ORDER) <= set(files)
    for path in IMPORT_ORDER:
        module = ModuleType(path.replace("/", "."))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(files[path], f"docs/adding.md: {path}.py", "exec"), module.__dict__)
    return module


async def test_the_documented_dialect_generates_streams_and_rejects(
    serve: Serve, route: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = endpoints.Endpoint("POST", "/generate", "infer")
    monkeypatch.setitem(endpoints._FIXED, (row.method, row.path), row)  # the page adds a line to this private table
    async with serve(FakeLoader(replies={"Hi<|im_end|>\n<|im_start|>assistant\n": "Hello there"})) as api:
        api.app.include_router(route.router)
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 5, "temperature": 0}}
        whole = await api.client.post("/generate", json=body)
        streamed = await api.client.post("/generate", json=body | {"stream": True})
        wrong = await api.client.post("/generate", json=body | {"parameters": {"max_new_tokens": "many"}})
        long = await api.client.post("/generate", json={"inputs": "x" * 5000})
    assert whole.json() == {"generated_text": "Hello"}
    *tokens, last = native_events(streamed.text)
    assert "".join(event["token"]["text"] for event in tokens) == last["generated_text"] == "Hello"
    assert "parameters.max_new_tokens" in wrong.json()["error"]["message"]
    assert (wrong.status_code, long.status_code) == (400, 400)
