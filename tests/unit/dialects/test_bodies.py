"""Replace each value of the bodies in `bodies.yaml` by odd ones; `bodies.txt` has the field that each error names.

``python -m tests.unit.dialects.test_bodies`` writes `bodies.txt` again.
"""

import copy
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.dialects import warnings
from server.dialects.chat.parse import ChatBody, ControlBody, parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.fields import Body, parse
from server.dialects.messages.parse import parse_messages
from server.dialects.native.parse import InfillBody, parse_infill, parse_native
from server.dialects.native.tokens import read_detokenize, read_tokenize
from server.dialects.ollama.parse import OllamaChatBody, parse_generate
from server.dialects.ollama.parse import parse_chat as parse_ollama_chat
from server.dialects.responses.parse import parse_response
from server.dialects.vectors import EmbeddingsBody, read_embeddings, read_rerank
from server.dialects.warnings import WARNING_HEADER, as_header, unused_fields
from server.errors import InvalidRequest
from tests.support.yaml_text import loaded

Parse = Callable[[dict[str, Any]], object]
MISSING: Any = object()
ODD_VALUES: tuple[Any, ...] = (
    *(MISSING, None, True, 0, -1, 1.5, 1e300, 2**63, "", "a", "\x00", "\u202e\ufffe"),
    *([], [[]], [None], [1], ["a"], [{}], {}, {"a": 1}, {"type": None}, {"type": "function"}, {"type": []}),
    *({"$ref": "#"}, [{"type": "text"}], [{"type": "text", "text": 1}], {"role": "user"}),
)
"""Each has a letter in `bodies.txt`: ``a`` removes the value, ``b`` is null, ``c`` is true, and so on."""
GOLDEN = Path(__file__).parent / "bodies.txt"
PARSERS: dict[str, Parse] = {
    "chat": parse_chat,
    "messages": parse_messages,
    "responses": parse_response,
    "ollama": parse_ollama_chat,
    "generate": parse_generate,
    "completion": parse_completion,
    "native": parse_native,
    "infill": parse_infill,
    "embeddings": lambda body: read_embeddings(body, native=False),
    "rerank": read_rerank,
    "tokenize": read_tokenize,
    "detokenize": read_detokenize,
}
BODIES = loaded(Path(__file__).with_name("bodies.yaml"))
DIALECTS: dict[str, tuple[Parse, dict[str, Any]]] = {name: (PARSERS[name], body) for name, body in BODIES.items()}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths(value[key], (*at, key))


def replaced(body: Any, at: Sequence[Any], value: Any) -> Any:
    """Return a copy of `body` with `value` at the path `at`. Values outside of the path are shared."""
    changed, (key, *inner) = copy.copy(body), at
    if inner:
        changed[key] = replaced(body[key], inner, value)
    elif value is MISSING:
        del changed[key]
    else:
        changed[key] = value
    return changed


def outcome(parse_body: Parse, body: dict[str, Any]) -> str:
    """Return the field that the error names, "-" if it names none, "+" if the body is accepted."""
    try:
        parse_body(body)
    except InvalidRequest as error:
        return error.param or "-"
    return "+"


def bounds(parse_body: Parse, body: dict[str, Any], at: tuple[Any, ...], value: int) -> str:
    """Return the smallest and the largest integer that is accepted at `at`."""
    found = []
    for end in (-(2**63), 2**64 - 1):  # the range of orjson
        inside, outside = value, end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            accepted = outcome(parse_body, replaced(body, at, middle)) == "+"
            inside, outside = (middle, outside) if accepted else (inside, middle)
        found.append(str(inside) if outcome(parse_body, replaced(body, at, end)) != "+" else "any")
    return " to ".join(found)


def lines(name: str) -> Iterator[str]:
    """Yield a line for each path of a dialect's body: the letters of the values, by the field that the error names."""
    parse_body, body = DIALECTS[name]
    parse_body(body)
    for at in paths(body):
        outcomes: dict[str, str] = {}
        for letter, value in zip(string.ascii_letters, ODD_VALUES, strict=False):
            try:
                param = outcome(parse_body, replaced(body, at, value))
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error
            outcomes[param] = outcomes.get(param, "") + letter
        if list(outcomes) == ["+"]:
            continue  # any value is accepted
        value = body
        for key in at:
            value = value[key]
        path = ".".join(map(str, at))
        limits = f" [{bounds(parse_body, body, at, value)}]" if type(value) is int else ""
        yield f"{name} {path}{limits}: " + ", ".join(
            f"{letters} {'=' if param == path else param}" for param, letters in outcomes.items()
        )


@pytest.mark.parametrize("name", DIALECTS)
def test_errors_for_odd_values_name_their_field(name: str) -> None:
    golden = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert list(lines(name)) == [line for line in golden if line.startswith(f"{name} ")]


F, CHAT_F = {"name": "f", "input_schema": {}}, {"type": "function", "function": {"name": "f"}}
FLAT_F = {"type": "function", "name": "f"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("chat", {"tools": [CHAT_F, CHAT_F]}, "tools.1.function.name"),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
        ("chat", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ("chat", {"tools": None, "tool_choice": "required"}, "tool_choice"),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}] * 16385}, "messages"),
        ("messages", {"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ("messages", {"tools": [F] * 1025}, "tools"),
        ("messages", {"tools": [F, F]}, "tools.1.name"),
        ("messages", {"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ("messages", {"tools": [F, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
        ("responses", {"metadata": {"a": "x" * 513}}, "metadata.a"),
        ("responses", {"metadata": {"a" * 65: "x"}}, "metadata." + "a" * 65),
        ("responses", {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ("responses", {"top_logprobs": 21}, "top_logprobs"),
        ("responses", {"background": True, "store": False}, "background"),
        ("responses", {"response_format": {"type": "text"}}, "text.format"),
        ("responses", {"tools": [FLAT_F, FLAT_F]}, "tools.1.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "shell"}}, "tool_choice.type"),
        ("responses", {"text": None, "grammar": 'root ::= "x"'}, "grammar"),
        ("responses", {"n": 2}, "n"),
        ("infill", {"input_extra": [{"text": ""}] * 1025}, "input_extra"),
        ("completion", {"prompt": ["a"] * 257}, "prompt"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("rerank", {"documents": ["a"] * 2049}, "documents"),
        ("native", {"samplers": ["top_k"] * 99}, "samplers"),
        ("native", {"reasoning_budget_message": "x" * 4097}, "reasoning_budget_message"),
        ("native", {"repeat_penalty": 1e-45}, "repeat_penalty"),
    ],
    ids=str,
)
def test_inconsistent_fields_and_too_many_items_are_rejected(name: str, fields: dict[str, Any], param: str) -> None:
    parse_body, body = DIALECTS[name]
    assert outcome(parse_body, body | fields) == param


INFILL = {"input_prefix": "a", "input_suffix": "b"}


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (InfillBody, {"input_suffix": "b"}, '"input_prefix" is required'),
        (InfillBody, {**INFILL, "prompt": 1}, '"prompt" must be a string'),
        (
            InfillBody,
            {**INFILL, "input_extra": 1},
            '"input_extra" must be an array of {"filename": string, "text": string}',
        ),
        (
            InfillBody,
            {**INFILL, "input_extra": [{}]},
            'extra_context chunk must contain a "text" field with a string value',
        ),
        (InfillBody, {**INFILL, "lora": {}}, "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"),
        (
            InfillBody,
            {**INFILL, "lora": [{"id": 0, "scale": ""}]},
            "Field 'lora.0.scale': type must be number, but is string",
        ),
        (ControlBody, {"id": "", "action": "cancel"}, "missing completion id"),
        (ControlBody, {"id": "a", "action": "stop"}, "unknown control action; known: 'reasoning_end' and 'cancel'"),
    ],
    ids=str,
)
def test_native_endpoints_have_llama_servers_errors(kind: type[Body], body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, body)
    assert caught.value.message == message


def test_a_warning_suggests_the_similar_field_at_the_same_path() -> None:
    header = as_header(unused_fields({"options": {"temprature": 1, "top_k": 1}}, OllamaChatBody))
    assert header[WARNING_HEADER] == "'options.temprature' is ignored: unknown field (did you mean 'temperature'?)"


@pytest.mark.parametrize("own", [[], ["a", "a", "b"], [str(n) for n in range(20)]], ids=len)
def test_the_warning_header_is_one_ascii_line_and_counts_further_fields(
    monkeypatch: pytest.MonkeyPatch, own: list[str]
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(warnings, "get_close_matches", lambda name, *_: compared.append(name) or [])  # type: ignore[func-returns-value]
    found = unused_fields({f"{n}é\r\n{'x' * 500}": 1 for n in range(1000)}, ChatBody, own)
    assert max(len(found), len(compared)) < 10, "only fields that the header shows may be compared with known names"
    header = as_header([*found, "another warning"])[WARNING_HEADER]
    assert header.isascii()
    assert header.isprintable()
    assert header.endswith(f"and {1000 + len({*own}) + 1 - 8} more")


def test_known_fields_of_nested_objects_have_no_warning() -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {}, "x": 1}}]}
    assert unused_fields({"messages": [called]}, OllamaChatBody) == [
        "'messages.0.tool_calls.0.function.x' is ignored: unknown field"
    ]
    assert unused_fields({"lora": [{"id": 0, "scale": 1, "zz": 1}]}, ChatBody) == [
        "'lora.0.zz' is ignored: unknown field"
    ]
    embedded = {"input": [{"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}]}
    assert unused_fields(embedded, EmbeddingsBody) == []


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for name in DIALECTS for line in lines(name)), encoding="utf-8")
