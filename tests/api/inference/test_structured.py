"""Constrained decoding over a model that would break the constraint, and limits of grammars."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from server.formats import BY_NAME
from server.sandbox.memory import MemoryWatch
from server.sandbox.process import WorkLimits
from server.structured.grammar.sandbox import Sandbox
from server.templates.built_in import source_of
from server.transport.admission import COMPILE_THREADS
from tests.api.conftest import Serve, until
from tests.api.inference.dialects import Chat, Completions, Native, Query
from tests.api.scripted import CHATML, TURN, answering
from tests.api.streams import events, posting
from tests.support.fakes import FakeLoader
from tests.support.tools import tool
from tests.unit.structured.builders import exploding_schema

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
TOOL = tool("f", {"a": {"type": "integer", "enum": [1, 2]}}, additionalProperties=False)
INVALID_CALLS = {
    "hermes": 'Let me <tool_see.\n<tool_call>\n{"name": "g", "arguments": {"a": "one", "b": 2}}\n</tool_call>',
    "qwen3-coder": "Let me <tool_see.\n<tool_call>\n<function=g>\n<parameter=b>\nno\n</parameter>\n</function>\n",
    "mistral": 'Let me <tool_see.\n[TOOL_CALLS][{"name": "g", "arguments": {}}]',
    "harmony": "<|channel|>commentary to=functions.g <|constrain|>json<|message|>no",
    "lfm2": "Let me <tool_see.\n<|tool_call_start|>[g(b=1)]<|tool_call_end|>",
}


def replying(text: str, tool_format: str = "hermes") -> tuple[FakeLoader, dict[str, Any]]:
    """Return the loader and the settings of a model that replies `text` and has this tool-call format."""
    return answering({"Hi": text}), {"demo": CHATML["demo"] | {"tool_format": tool_format}}


def check_call(call: dict[str, Any]) -> None:
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("tool_format", INVALID_CALLS)
async def test_tool_calls_match_the_schema_of_a_tool(serve: Serve, tool_format: str, choice: object) -> None:
    loader, models = replying(INVALID_CALLS[tool_format], tool_format)
    body = {"messages": HI, "tools": [TOOL], "tool_choice": choice, "max_tokens": 300, "n": 2}
    body["parallel_tool_calls"] = choice == "auto"  # a required list of calls would never end
    async with serve(loader, models=models) as api:
        reply = (await api.client.post(URL, json=body)).json()
    for returned in reply["choices"]:
        for call in returned["message"]["tool_calls"]:
            check_call(call)
        if choice == "auto" and tool_format != "harmony":
            assert returned["message"]["content"].startswith("Let me <tool_see.")


GEMMA = "<|channel>thought\n"
MENTIONED = {
    "hermes": ("<think>", "A <tool_call> it is.", "</think>", INVALID_CALLS["hermes"]),
    "qwen3-coder": (
        "<think>",
        "So <tool_call>\n<function=g>\n</function>\n</tool_call> or not.",
        "</think>",
        INVALID_CALLS["qwen3-coder"],
    ),
    "gemma4": (
        GEMMA,
        "So <|tool_call>call:g{b:no}<tool_call|> or not.",
        "<channel|>",
        "<|tool_call>call:g{b:no}<tool_call|>",
    ),
}


@pytest.mark.parametrize("tool_format", MENTIONED)
async def test_call_syntax_in_reasoning_is_neither_a_call_nor_constrained(serve: Serve, tool_format: str) -> None:
    opening, reasoning, closing, call = MENTIONED[tool_format]
    loader, models = replying(f"{opening}{reasoning}{closing}{call}", tool_format)
    models["demo"]["chat_template"] = source_of("chatml") + f"{{# {opening}{closing} #}}"
    body = {"messages": HI, "tools": [TOOL], "max_tokens": 300, "parallel_tool_calls": False}
    async with serve(loader, models=models) as api:
        reply = await api.client.post(URL, json=body)
    message = reply.json()["choices"][0]["message"]
    assert message["reasoning_content"] == reasoning
    assert len(message["tool_calls"]) == 1
    check_call(message["tool_calls"][0])


@pytest.mark.parametrize("stream", [False, True])
async def test_call_in_reasoning_that_never_ends_is_a_call(serve: Serve, stream: bool) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>'
    loader, models = replying(f"<think>I call.\n{call}")
    fields = {"stream": stream, "stream_options": {"include_usage": True}}
    async with serve(loader, models=models) as api:
        reply = await api.client.post(URL, json={"messages": HI, "tools": [TOOL], **fields})
    answer = Chat().streamed(reply.text) if stream else Chat().whole(reply.json())
    assert (answer.reasoning, answer.reason) == ("I call.", "tool_calls")
    assert [call[1:] for call in answer.calls] == [("f", {"a": 2})]


async def test_unsupported_schema_is_a_400_if_a_call_is_required(serve: Serve) -> None:
    loader, models = replying(text := "Use <tool_cal, <tool_ and <, as in a<b.")
    unsupported = {"type": "function", "function": {"name": "h", "parameters": {"type": "object", "not": {}}}}
    async with serve(loader, models=models) as api:
        body = {"messages": HI, "tools": [TOOL, unsupported], "tool_choice": "required"}
        await api.expect(f"POST {URL}", body, 400, ({"error": {"param": "tools.1.function.parameters"}}, "'not'"))
        content = f'"content":"{text}"'  # starts of call tags are content
        await api.expect(f"POST {URL}", {"messages": HI, "tools": [TOOL]}, 200, (content, '"finish_reason":"stop"'))


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
CONSTRAINTS = [
    ({"guided_json": SCHEMA}, '{"a": 1}'),
    ({"guided_json": json.dumps(SCHEMA)}, '{"a": 1}'),
    ({"guided_regex": "[0-9]{3}x"}, "123x"),
    ({"guided_choice": ["yes", "no"]}, "no"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "b"),
    ({"guided_grammar": 'start: "a" | "b"'}, "b"),
    ({"structured_outputs": {"json": SCHEMA}}, '{"a": 1}'),
    ({"structured_outputs": {"regex": "[0-9]+x"}}, "7x"),
    ({"structured_outputs": {"choice": ["yes", "no"], "backend": "auto"}}, "yes"),
    ({"structured_outputs": {"grammar": 'start: "a"+ "."'}}, "aa."),
    ({"structured_outputs": {"json_object": True}}, "{}"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, '{"a": 1}'),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, '{"a": 1}'),
]


@pytest.mark.parametrize(("fields", "output"), CONSTRAINTS)
async def test_vllms_fields_constrain_chats_and_completions(serve: Serve, fields: dict[str, Any], output: str) -> None:
    replies = {f"Hi{TURN}": output + "!", "Hi": output + "!"}
    async with serve(FakeLoader(replies=replies)) as api:
        for dialect in (Chat(), Completions(), Native()):
            if isinstance(dialect, Native) and "response_format" in fields:
                continue  # llama-server's own API has no response_format
            reply = await api.client.post(dialect.path, json=dialect.body(Query(limit=60)) | fields)
            assert dialect.whole(reply.json()).text == output, dialect.name


INVALID_CONSTRAINTS: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format"),
    ({"structured_outputs": {"regex": "a"}, "json_schema": {}}, "structured_outputs.regex", "json_schema"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex", "structured_outputs.json"),
    ({"guided_json": {}, "grammar": 'root ::= "a"'}, "guided_json", "grammar"),
    ({"guided_regex": "a", "tools": [TOOL]}, "guided_regex", "tools"),
    ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
    ({"structured_outputs": "a"}, "structured_outputs", "object"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "not permitted"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_choice": "a"}, "guided_choice", "array"),
    ({"guided_json": "{"}, "guided_json", "EOF"),
    ({"guided_json": 5}, "guided_json", "object"),
    ({"guided_json": {"type": 5}}, "guided_json.type", "not a valid JSON Schema"),
    ({"guided_regex": 5}, "guided_regex", "string"),
    ({"guided_regex": "("}, "guided_regex", "regex"),
    ({"guided_grammar": "start: x"}, "guided_grammar", "grammar"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
]


async def test_conflicting_or_invalid_constraint_is_a_400_that_names_the_field(serve: Serve) -> None:
    loader, models = replying("x")
    async with serve(loader, models=models) as api:
        for fields, param, part in INVALID_CONSTRAINTS:
            reply = await api.expect(f"POST {URL}", {"messages": HI, **fields}, 400, {"error": {"param": param}})
            message = reply.json()["error"]["message"]
            assert param in message
            assert part in message


@pytest.mark.parametrize("tool_format", [name for name in BY_NAME if name != "functionary-v3.2"])
async def test_forced_call_truncated_by_max_tokens_leaves_no_markup_in_content(serve: Serve, tool_format: str) -> None:
    """functionary-v3.2 is excluded: its prompt already contains the start of a header."""
    loader, models = replying("", tool_format)
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required"}
    async with serve(loader, models=models) as api:
        for n in (9, 26):
            truncated = {**body, "max_tokens": n}
            message = (await api.client.post(URL, json=truncated)).json()["choices"][0]["message"]
            assert not message["content"]
            streamed = events((await api.client.post(URL, json={**truncated, "stream": True})).text)
            assert not "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed)


async def test_n_forbidden_lists_the_tokens_that_the_grammar_forbids(serve: Serve) -> None:
    loader, models = replying("no")
    body = {"messages": HI, "grammar": 'root ::= "y" | "z"', "logprobs": True, "top_logprobs": 2, "n_forbidden": 3}
    async with serve(loader, models=models) as api:
        first = (await api.client.post(URL, json=body)).json()["choices"][0]["logprobs"]["content"][0]
        assert first["mask"]["n_allowed"] == 2
        forbidden = first["mask"]["forbidden"]
        assert forbidden[0]["token"] == "n"
        assert len(forbidden) == 3
        assert not {"y", "z"} & {entry["token"] for entry in forbidden}
        unconstrained = (await api.client.post(URL, json=body | {"grammar": None, "max_tokens": 2})).json()
        assert "mask" not in unconstrained["choices"][0]["logprobs"]["content"][0]
        assert (await api.client.post(URL, json=body | {"n_forbidden": 51})).status_code == 400


AMPLE_LIMITS = WorkLimits(cpu_s=120, wall_s=120, memory_bytes=2 << 30)
"""Enough for the compilation of the exploding schema to run until a test ends it."""
EXPENSIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": exploding_schema()}}},
    ),
    "json_schema": ("json_schema", {"json_schema": exploding_schema()}),
    "structured_outputs": ("structured_outputs.json", {"structured_outputs": {"json": exploding_schema()}}),
    "tools": (
        "tools.0.function.parameters",
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": exploding_schema()}}],
            "tool_choice": "required",
        },
    ),
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


def expensive_body(stream: bool = False, number: int = 0) -> dict[str, Any]:
    """Return a chat whose schema takes very long to compile. Each `number` makes another schema."""
    schema = {**exploding_schema(), "title": str(number)}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": HI, "stream": stream, "response_format": response_format}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", EXPENSIVE)
async def test_expensive_grammar_is_a_400_that_names_its_field(serve: Serve, name: str, stream: bool) -> None:
    """The limit covers parsing and compiling. Each of these grammars takes at least 0.05 s of CPU time."""
    field, fields = EXPENSIVE[name]
    async with serve(sandbox=Sandbox(WorkLimits(cpu_s=0.005, wall_s=60))) as api:
        message = f'"message":"{field}: compiling it was stopped, it took more than 0.005 s of CPU time'
        parts = (message, "use fewer or simpler alternatives")
        await api.expect(f"POST {URL}", {"messages": HI, "stream": stream, **fields}, 400, parts)
        await api.expect(f"POST {URL}", {"messages": HI})


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_ends_the_compilation_of_a_grammar(serve: Serve, stream: bool) -> None:
    sandbox = Sandbox(AMPLE_LIMITS)
    async with serve(sandbox=sandbox) as api:
        async with posting(api.app, URL, expensive_body(stream)) as exchange:
            await until(lambda: sandbox.at_work)
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        await until(lambda: not sandbox.at_work)


async def test_other_clients_are_served_while_expensive_grammars_compile(serve: Serve) -> None:
    """More endless compilations are requested than may run concurrently."""
    sandbox = Sandbox(AMPLE_LIMITS)
    cheap = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "enum": ["a"]}}}
    async with serve(sandbox=sandbox) as api, AsyncExitStack() as stack:
        exchanges = [
            await stack.enter_async_context(posting(api.app, URL, expensive_body(number=number)))
            for number in range(COMPILE_THREADS + 6)
        ]
        await until(lambda: len(sandbox.at_work) == COMPILE_THREADS)
        await api.expect(f"POST {URL}", {"messages": HI})
        reply = await api.client.post(URL, json={"messages": HI, "response_format": cheap})
        assert reply.json()["choices"][0]["message"]["content"] == '"a"'
        await api.expect("GET /health")
        for exchange in exchanges:
            exchange.disconnect()
        await asyncio.wait([exchange.task for exchange in exchanges])
        await until(lambda: not sandbox.at_work)
        assert not api.app.state.services.compiling._all.locked()


async def test_low_memory_ends_expensive_compilations_and_fails_readyz(serve: Serve) -> None:
    sandbox = Sandbox(AMPLE_LIMITS)
    async with serve(sandbox=sandbox) as api:
        watch: MemoryWatch = api.app.state.services.memory
        await api.expect("GET /readyz")
        watch._reserve = 1 << 50
        task = asyncio.create_task(api.client.post(URL, json=expensive_body()))
        await until(lambda: watch.check() and task.done())
        reply = task.result()
        assert reply.status_code == 503
        assert "the server's memory is short" in reply.json()["error"]["message"]
        await api.expect("GET /readyz", None, 503, "memory is short")
        await api.expect("GET /livez", None, 200, "memory is short")
        await api.expect(f"POST {URL}", {"messages": HI})  # requests without a grammar are served
        watch._reserve = 0
        watch.check()
        await api.expect("GET /readyz")
        assert (await api.client.get("/livez")).json() == {"status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("url", [URL, "/v1/responses"])
async def test_total_size_of_custom_tool_grammars_is_limited(serve: Serve, url: str, stream: bool) -> None:
    regex = "|".join(f"a{i}" for i in range(2_000))
    tools = [
        {"type": "custom", "name": f"f{i}", "format": {"type": "grammar", "syntax": "regex", "definition": regex}}
        for i in range(4)
    ]
    prompt = {"messages": HI} if url == URL else {"input": "Hi"}
    async with serve() as api:
        parts = ("tools.3", "32768 characters together")
        await api.expect(f"POST {url}", {**prompt, "tools": tools, "stream": stream}, 400, parts)
        fewer = await api.client.post(url, json={**prompt, "tools": tools[:3], "stream": stream})
    assert "together" not in fewer.text  # three are only too long for the fake model's context
