"""Replace each value of a body of `bodies.yaml`, and compare the field that is refused with `bodies.txt`.

``python -m tests.unit.dialects.test_bodies`` writes the file again; the difference shows what parsing changed.
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
from server.dialects.ollama.parse import parse_chat as read_ollama_chat
from server.dialects.responses.parse import parse_response
from server.dialects.vectors import EmbeddingsBody, read_embeddings, read_rerank
from server.dialects.warnings import WARNING_HEADER, as_header, unused_fields
from server.errors import InvalidRequest
from tests.support.yaml_text import loaded

Read = Callable[[dict[str, Any]], object]
MISSING: Any = object()
STRANGE: tuple[Any, ...] = (
    *(MISSING, None, True, 0, -1, 1.5, 1e300, 2**63, "", "a", "\x00", "\u202e\ufffe"),
    *([], [[]], [None], [1], ["a"], [{}], {}, {"a": 1}, {"type": None}, {"type": "function"}, {"type": []}),
    *({"$ref": "#"}, [{"type": "text"}], [{"type": "text", "text": 1}], {"role": "user"}),
)
"""The values, in the order of the letters in `bodies.txt`: ``a`` removes the value, ``b`` is null, and so on."""
GOLDEN = Path(__file__).parent / "bodies.txt"
READERS: dict[str, Read] = {
    "chat": parse_chat,
    "messages": parse_messages,
    "responses": parse_response,
    "ollama": read_ollama_chat,
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
FORMATS: dict[str, tuple[Read, dict[str, Any]]] = {name: (READERS[name], body) for name, body in BODIES.items()}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def replaced(body: Any, at: Sequence[Any], value: Any) -> Any:
    """Return `body` with `value` at `at`; what lies beside that path is shared."""
    made, (key, *inner) = copy.copy(body), at
    if inner:
        made[key] = replaced(body[key], inner, value)
    elif value is MISSING:
        del made[key]
    else:
        made[key] = value
    return made


def outcome(read: Read, body: dict[str, Any]) -> str:
    """Return the field that the refusal names, or "+" if the body is accepted."""
    try:
        read(body)
    except InvalidRequest as error:
        return error.param or "-"
    return "+"


def bounds(read: Read, body: dict[str, Any], at: tuple[Any, ...], value: int) -> str:
    """Return the smallest and the largest whole number that is accepted at `at`."""
    found = []
    for end in (-(2**63), 2**64 - 1):  # what orjson reads
        inside, outside = value, end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            accepted = outcome(read, replaced(body, at, middle)) == "+"
            inside, outside = (middle, outside) if accepted else (inside, middle)
        found.append(str(inside) if outcome(read, replaced(body, at, end)) != "+" else "any")
    return " to ".join(found)


def lines(name: str) -> Iterator[str]:
    """Yield for each place of a format's body: the place, and which values are accepted or refused in which name."""
    read, body = FORMATS[name]
    read(body)
    for at in places(body):
        outcomes: dict[str, str] = {}
        for letter, value in zip(string.ascii_letters, STRANGE, strict=False):
            try:
                named = outcome(read, replaced(body, at, value))
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error
            outcomes[named] = outcomes.get(named, "") + letter
        if list(outcomes) == ["+"]:
            continue  # no rule
        value = body
        for key in at:
            value = value[key]
        place = ".".join(map(str, at))
        limits = f" [{bounds(read, body, at, value)}]" if type(value) is int else ""
        yield f"{name} {place}{limits}: " + ", ".join(
            f"{letters} {'=' if named == place else named}" for named, letters in outcomes.items()
        )


@pytest.mark.parametrize("name", FORMATS)
def test_each_value_is_accepted_or_refused_in_the_name_of_its_field(name: str) -> None:
    known = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert list(lines(name)) == [line for line in known if line.startswith(f"{name} ")]


F, CHAT_F = {"name": "f", "input_schema": {}}, {"type": "function", "function": {"name": "f"}}
FLAT_F = {"type": "function", "name": "f"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("name", "fields", "named"),
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
def test_fields_that_do_not_fit_each_other_or_are_too_many_are_refused(
    name: str, fields: dict[str, Any], named: str
) -> None:
    read, body = FORMATS[name]
    assert outcome(read, body | fields) == named


GAP = {"input_prefix": "a", "input_suffix": "b"}


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (InfillBody, {"input_suffix": "b"}, '"input_prefix" is required'),
        (InfillBody, {**GAP, "prompt": 1}, '"prompt" must be a string'),
        (
            InfillBody,
            {**GAP, "input_extra": 1},
            '"input_extra" must be an array of {"filename": string, "text": string}',
        ),
        (
            InfillBody,
            {**GAP, "input_extra": [{}]},
            'extra_context chunk must contain a "text" field with a string value',
        ),
        (InfillBody, {**GAP, "lora": {}}, "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"),
        (
            InfillBody,
            {**GAP, "lora": [{"id": 0, "scale": ""}]},
            "Field 'lora.0.scale': type must be number, but is string",
        ),
        (ControlBody, {"id": "", "action": "cancel"}, "missing completion id"),
        (ControlBody, {"id": "a", "action": "stop"}, "unknown control action; known: 'reasoning_end' and 'cancel'"),
    ],
    ids=str,
)
def test_errors_of_its_own_endpoints_are_llama_servers(kind: type[Body], body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, body)
    assert caught.value.message == message


def test_a_similar_known_name_is_suggested_at_the_path_of_the_field() -> None:
    header = as_header(unused_fields({"options": {"temprature": 1, "top_k": 1}}, OllamaChatBody))
    assert header[WARNING_HEADER] == "'options.temprature' is ignored: unknown field (did you mean 'temperature'?)"


@pytest.mark.parametrize("own", [[], ["a", "a", "b"], [str(n) for n in range(20)]], ids=len)
def test_many_unused_fields_are_counted_and_odd_names_are_one_line_of_ascii(
    monkeypatch: pytest.MonkeyPatch, own: list[str]
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(warnings, "get_close_matches", lambda name, *_: compared.append(name) or [])  # type: ignore[func-returns-value]
    found = unused_fields({f"{n}é\r\n{'x' * 500}": 1 for n in range(1000)}, ChatBody, own)
    assert max(len(found), len(compared)) < 10, "of a million fields, only those are compared that are shown"
    header = as_header([*found, "of the session"])[WARNING_HEADER]
    assert header.isascii()
    assert header.isprintable()
    assert header.endswith(f"and {1000 + len({*own}) + 1 - 8} more")


def test_fields_that_clients_send_back_or_that_have_an_effect_are_known() -> None:
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
    GOLDEN.write_text("".join(f"{line}\n" for name in FORMATS for line in lines(name)), encoding="utf-8")
