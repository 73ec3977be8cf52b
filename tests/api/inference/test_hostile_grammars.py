"""A client's grammar that takes too much: it is refused, ends with its client, and costs no other client anything."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from server.sandbox.memory import MemoryWatch
from server.sandbox.process import WorkLimits
from server.structured.grammar.sandbox import Sandbox
from server.transport.admission import COMPILE_THREADS
from tests.api.conftest import Serve, until
from tests.api.streams import posting
from tests.unit.structured.builders import exploding_schema

URL = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
AMPLE = WorkLimits(cpu_s=120, wall_s=120, memory_bytes=2 << 30)
"""Enough for the exploding schema to go on until somebody ends it."""
HOSTILE: dict[str, dict[str, Any]] = {
    "response_format.json_schema.schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": exploding_schema()}}
    },
    "json_schema": {"json_schema": exploding_schema()},
    "structured_outputs.json": {"structured_outputs": {"json": exploding_schema()}},
    "tools.0.function.parameters": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": exploding_schema()}}],
        "tool_choice": "required",
    },
}


def body(stream: bool = False, number: int = 0) -> dict[str, Any]:
    """A chat whose schema explodes; another one for each `number`."""
    schema = {**exploding_schema(), "title": str(number)}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": MESSAGES, "stream": stream, "response_format": shape}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", HOSTILE)
async def test_a_schema_that_explodes_is_refused_with_its_field(serve: Serve, field: str, stream: bool) -> None:
    sandbox = Sandbox(WorkLimits(cpu_s=0.1, wall_s=60))
    async with serve(sandbox=sandbox) as api:
        stopped = f'"message":"{field}: compiling it was stopped, it took more than 0.1 s of CPU time'
        said = (stopped, "use fewer or simpler alternatives")
        await api.expect(f"POST {URL}", {"messages": MESSAGES, "stream": stream, **HOSTILE[field]}, 400, said)
        await api.expect(f"POST {URL}", {"messages": MESSAGES})


TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("grammar", {"grammar": "root ::= " + "(" * 90 + '"a"' + ")*" * 90 + ' "a" | "b"' * 4000}),
    "characters": ("guided_grammar", {"guided_grammar": 'root ::= "' + "a" * 20_000 + '"'}),
    "tokens": ("grammar", {"grammar": "root ::= " + " ".join(f"<[{n}]>" for n in range(19_000))}),
    "unique items without enough values": (
        "json_schema",
        {
            "json_schema": {
                "properties": {
                    str(n): {"uniqueItems": True, "minItems": 400, "items": {"enum": list(range(n, n + 400))}}
                    for n in range(40)
                }
            }
        },
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", TEXTS)
async def test_what_is_read_of_a_grammar_is_bounded_too(serve: Serve, what: str, stream: bool) -> None:
    """Parsing counts as compiling. On an idle machine it takes 0.05 to 0.5 s of CPU for these."""
    field, fields = TEXTS[what]
    async with serve(sandbox=Sandbox(WorkLimits(cpu_s=0.02, wall_s=60))) as api:
        stopped = f'"message":"{field}: compiling it was stopped, it took more than 0.02 s of CPU time'
        await api.expect(f"POST {URL}", {"messages": MESSAGES, "stream": stream, **fields}, 400, stopped)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_ends_the_compilation(serve: Serve, stream: bool) -> None:
    sandbox = Sandbox(AMPLE)
    async with serve(sandbox=sandbox) as api:
        async with posting(api.app, URL, body(stream)) as exchange:
            await until(lambda: sandbox.at_work)
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        await until(lambda: not sandbox.at_work)


async def test_other_clients_are_served_while_grammars_explode(serve: Serve) -> None:
    """As many as can be compiled at once and more, each of which never ends."""
    sandbox = Sandbox(AMPLE)
    plain = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "enum": ["a"]}}}
    async with serve(sandbox=sandbox) as api, AsyncExitStack() as stack:
        exchanges = [
            await stack.enter_async_context(posting(api.app, URL, body(number=number)))
            for number in range(COMPILE_THREADS + 6)
        ]
        await until(lambda: len(sandbox.at_work) == COMPILE_THREADS)
        assert (await api.client.post(URL, json={"messages": MESSAGES})).status_code == 200
        reply = await api.client.post(URL, json={"messages": MESSAGES, "response_format": plain})
        assert reply.json()["choices"][0]["message"]["content"] == '"a"'
        assert (await api.client.get("/health")).status_code == 200
        for exchange in exchanges:
            exchange.disconnect()
        await asyncio.wait([exchange.task for exchange in exchanges])
        await until(lambda: not sandbox.at_work)
        assert not api.app.state.services.compiling._all.locked()


async def test_short_memory_ends_the_grammar_that_takes_it_and_takes_the_traffic_away(serve: Serve) -> None:
    sandbox = Sandbox(AMPLE)
    async with serve(sandbox=sandbox) as api:
        watch: MemoryWatch = api.app.state.services.memory
        assert (await api.client.get("/readyz")).status_code == 200
        watch._reserve = 1 << 50
        task = asyncio.create_task(api.client.post(URL, json=body()))
        await until(lambda: watch.check() and task.done())
        reply = task.result()
        assert reply.status_code == 503
        assert "the server's memory is short" in reply.json()["error"]["message"]
        await api.expect("GET /readyz", None, 503, "memory is short")
        await api.expect("GET /livez", None, 200, "memory is short")
        assert (await api.client.post(URL, json={"messages": MESSAGES})).status_code == 200, "what fits is served"
        watch._reserve = 0
        watch.check()
        await api.expect("GET /readyz")
        assert (await api.client.get("/livez")).json() == {"status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", [URL, "/v1/responses"])
async def test_the_grammars_of_custom_tools_are_bounded_together(serve: Serve, url: str, stream: bool) -> None:
    regex = "|".join(f"a{i}" for i in range(2_000))
    tools = [
        {"type": "custom", "name": f"f{i}", "format": {"type": "grammar", "syntax": "regex", "definition": regex}}
        for i in range(4)
    ]
    asked = {"messages": MESSAGES} if url == URL else {"input": "Hi"}
    async with serve() as api:
        said = ("tools.3", "32768 characters together")
        await api.expect(f"POST {url}", {**asked, "tools": tools, "stream": stream}, 400, said)
        fewer = await api.client.post(url, json={**asked, "tools": tools[:3], "stream": stream})
    assert "together" not in fewer.text  # they are only too long for the fake model's context
