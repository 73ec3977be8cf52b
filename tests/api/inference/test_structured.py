"""What shapes the output, over a model that would write something else; grammars that take too much are refused."""

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
from tests.api.inference.dialects import Asked, Chat, Completions, Native
from tests.api.scripted import CHATML, TURN, answering
from tests.api.streams import events, posting
from tests.support.fakes import FakeLoader
from tests.support.tools import tool
from tests.unit.structured.builders import exploding_schema

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
TOOL = tool("f", {"a": {"type": "integer", "enum": [1, 2]}}, additionalProperties=False)
WRONG = 'Let me <tool_see.\n<tool_call>\n{"name": "g", "arguments": {"a": "one", "b": 2}}\n</tool_call>'
OPENED = {
    "hermes": WRONG,
    "qwen3-coder": "Let me <tool_see.\n<tool_call>\n<function=g>\n<parameter=b>\nno\n</parameter>\n</function>\n",
    "mistral": 'Let me <tool_see.\n[TOOL_CALLS][{"name": "g", "arguments": {}}]',
    "harmony": "<|channel|>commentary to=functions.g <|constrain|>json<|message|>no",
    "lfm2": "Let me <tool_see.\n<|tool_call_start|>[g(b=1)]<|tool_call_end|>",
}


def model_that_says(text: str, form: str = "hermes") -> tuple[FakeLoader, dict[str, Any]]:
    """With a template that knows tools, in that format."""
    return answering({"Hi": text}), {"demo": CHATML["demo"] | {"tool_format": form}}


def check(call: dict[str, Any]) -> None:
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("form", OPENED)
async def test_a_model_that_would_break_the_schema_is_kept_to_it(serve: Serve, form: str, choice: object) -> None:
    loader, models = model_that_says(OPENED[form], form)
    body = {"messages": HI, "tools": [TOOL], "tool_choice": choice, "max_tokens": 300, "n": 2}
    body["parallel_tool_calls"] = choice == "auto"  # or the list of calls would never end
    async with serve(loader, models=models) as api:
        reply = (await api.client.post(URL, json=body)).json()
    for got in reply["choices"]:
        for call in got["message"]["tool_calls"]:
            check(call)
        if choice == "auto" and form != "harmony":
            assert got["message"]["content"].startswith("Let me <tool_see.")


GEMMA = "<|channel>thought\n"
MENTIONED = {
    "hermes": ("<think>", "A <tool_call> it is.", "</think>", WRONG),
    "qwen3-coder": (
        "<think>",
        "So <tool_call>\n<function=g>\n</function>\n</tool_call> or not.",
        "</think>",
        OPENED["qwen3-coder"],
    ),
    "gemma4": (
        GEMMA,
        "So <|tool_call>call:g{b:no}<tool_call|> or not.",
        "<channel|>",
        "<|tool_call>call:g{b:no}<tool_call|>",
    ),
}


@pytest.mark.parametrize("form", MENTIONED)
async def test_a_call_that_thoughts_mention_is_neither_a_call_nor_kept_to_anything(serve: Serve, form: str) -> None:
    opening, thought, closing, call = MENTIONED[form]
    loader, models = model_that_says(f"{opening}{thought}{closing}{call}", form)
    models["demo"]["chat_template"] = source_of("chatml") + f"{{# {opening}{closing} #}}"
    body = {"messages": HI, "tools": [TOOL], "max_tokens": 300, "parallel_tool_calls": False}
    async with serve(loader, models=models) as api:
        reply = await api.client.post(URL, json=body)
    message = reply.json()["choices"][0]["message"]
    assert message["reasoning_content"] == thought
    assert len(message["tool_calls"]) == 1
    check(message["tool_calls"][0])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_in_thoughts_that_never_end_is_a_call(serve: Serve, stream: bool) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>'
    loader, models = model_that_says(f"<think>I call.\n{call}")
    asked = {"messages": HI, "tools": [TOOL]}
    async with serve(loader, models=models) as api:
        reply = await api.client.post(URL, json={**asked, "stream": stream, "stream_options": {"include_usage": True}})
    answer = Chat().streamed(reply.text) if stream else Chat().whole(reply.json())
    assert (answer.reasoning, answer.reason) == ("I call.", "tool_calls")
    assert [known[1:] for known in answer.calls] == [("f", {"a": 2})]


async def test_a_schema_that_cannot_be_kept_is_named_where_a_call_is_required(serve: Serve) -> None:
    loader, models = model_that_says(text := "Use <tool_cal, <tool_ and <, as in a<b.")
    odd = {"type": "function", "function": {"name": "h", "parameters": {"type": "object", "not": {}}}}
    async with serve(loader, models=models) as api:
        body = {"messages": HI, "tools": [TOOL, odd], "tool_choice": "required"}
        await api.expect(f"POST {URL}", body, 400, ({"error": {"param": "tools.1.function.parameters"}}, "'not'"))
        left_alone = f'"content":"{text}"'  # which only begins like a call
        await api.expect(f"POST {URL}", {"messages": HI, "tools": [TOOL]}, 200, (left_alone, '"finish_reason":"stop"'))


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
SHAPES = [
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


@pytest.mark.parametrize(("fields", "said"), SHAPES)
async def test_vllms_fields_shape_chats_and_completions(serve: Serve, fields: dict[str, Any], said: str) -> None:
    replies = {f"Hi{TURN}": said + "!", "Hi": said + "!"}
    async with serve(FakeLoader(replies=replies)) as api:
        for dialect in (Chat(), Completions(), Native()):
            if isinstance(dialect, Native) and "response_format" in fields:
                continue  # llama-server's own has none
            reply = await api.client.post(dialect.path, json=dialect.body(Asked(limit=60)) | fields)
            assert dialect.whole(reply.json()).text == said, dialect.name


REFUSED: list[tuple[dict[str, Any], str, str]] = [
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


async def test_what_cannot_be_is_a_400_that_names_the_field(serve: Serve) -> None:
    loader, models = model_that_says("x")
    async with serve(loader, models=models) as api:
        for fields, param, other in REFUSED:
            reply = await api.expect(f"POST {URL}", {"messages": HI, **fields}, 400, {"error": {"param": param}})
            message = reply.json()["error"]["message"]
            assert param in message
            assert other in message


@pytest.mark.parametrize("form", [name for name in BY_NAME if name != "functionary-v3.2"])
async def test_a_forced_call_that_a_limit_cuts_off_shows_no_markup(serve: Serve, form: str) -> None:
    """Whole and streamed; the prompt of the format that is left out begins a header."""
    loader, models = model_that_says("", form)
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required"}
    async with serve(loader, models=models) as api:
        for n in (9, 26):
            cut = {**body, "max_tokens": n}
            message = (await api.client.post(URL, json=cut)).json()["choices"][0]["message"]
            assert not message["content"]
            streamed = events((await api.client.post(URL, json={**cut, "stream": True})).text)
            assert not "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed)


async def test_who_asks_is_told_what_a_grammar_forbade(serve: Serve) -> None:
    loader, models = model_that_says("no")
    body = {"messages": HI, "grammar": 'root ::= "y" | "z"', "logprobs": True, "top_logprobs": 2, "n_forbidden": 3}
    async with serve(loader, models=models) as api:
        first = (await api.client.post(URL, json=body)).json()["choices"][0]["logprobs"]["content"][0]
        assert first["mask"]["n_allowed"] == 2
        forbidden = first["mask"]["forbidden"]
        assert forbidden[0]["token"] == "n"
        assert len(forbidden) == 3
        assert not {"y", "z"} & {one["token"] for one in forbidden}
        free = (await api.client.post(URL, json=body | {"grammar": None, "max_tokens": 2})).json()
        assert "mask" not in free["choices"][0]["logprobs"]["content"][0]
        assert (await api.client.post(URL, json=body | {"n_forbidden": 51})).status_code == 400


AMPLE = WorkLimits(cpu_s=120, wall_s=120, memory_bytes=2 << 30)
"""Enough for the exploding schema to go on until somebody ends it."""
HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
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


def body(stream: bool = False, number: int = 0) -> dict[str, Any]:
    """A chat whose schema explodes; another one for each `number`."""
    schema = {**exploding_schema(), "title": str(number)}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": HI, "stream": stream, "response_format": shape}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", HOSTILE)
async def test_a_grammar_that_takes_too_much_is_refused_with_its_field(serve: Serve, what: str, stream: bool) -> None:
    """Parsing counts as compiling. Each takes 0.05 s of CPU time or more."""
    field, fields = HOSTILE[what]
    async with serve(sandbox=Sandbox(WorkLimits(cpu_s=0.005, wall_s=60))) as api:
        stopped = f'"message":"{field}: compiling it was stopped, it took more than 0.005 s of CPU time'
        said = (stopped, "use fewer or simpler alternatives")
        await api.expect(f"POST {URL}", {"messages": HI, "stream": stream, **fields}, 400, said)
        await api.expect(f"POST {URL}", {"messages": HI})


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
        assert (await api.client.post(URL, json={"messages": HI})).status_code == 200
        reply = await api.client.post(URL, json={"messages": HI, "response_format": plain})
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
        assert (await api.client.post(URL, json={"messages": HI})).status_code == 200, "what fits is served"
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
    asked = {"messages": HI} if url == URL else {"input": "Hi"}
    async with serve() as api:
        said = ("tools.3", "32768 characters together")
        await api.expect(f"POST {url}", {**asked, "tools": tools, "stream": stream}, 400, said)
        fewer = await api.client.post(url, json={**asked, "tools": tools[:3], "stream": stream})
    assert "together" not in fewer.text  # they are only too long for the fake model's context
