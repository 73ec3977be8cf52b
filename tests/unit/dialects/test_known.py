"""Descriptions of bodies: unknown fields by their paths, and the fields of the official SDKs' types."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import typing_extensions
from anthropic.types import MessageParam, TextBlockParam, ToolParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import FunctionToolParam, ResponseInputItemParam

from server.dialects.chat import schemas as chat
from server.dialects.generation import ReasoningFields
from server.dialects.messages import parse as messages
from server.dialects.responses import parse as responses
from server.dialects.warnings import WARNING_HEADER, ByType, Known, as_header, fields_of, unknown_fields


def typed_dicts(kind: Any) -> list[Any]:
    """The TypedDicts that a type may be."""
    if typing_extensions.is_typeddict(kind):
        return [kind]
    if get_origin(kind) in (typing_extensions.Literal, dict):
        return []
    return [found for each in get_args(kind) for found in typed_dicts(each)]


def reported(kind: Any, known: Known, path: str = "") -> Iterator[str]:
    """The fields of the SDK's type that are reported as ignored. Types that are not described are not checked."""
    for each in typed_dicts(kind):
        hints = get_type_hints(each, include_extras=False)
        kinds = get_args(hints["type"]) if "type" in hints and get_origin(hints["type"]) else ()
        types = [value for inner in (hints.get("type"), *kinds) for value in get_args(inner) if isinstance(value, str)]
        fields = known.of({"type": types[0] if types else None}) if isinstance(known, ByType) else known
        if fields is None:
            continue
        for name, value in hints.items():
            where = f"{path}.{name}".lstrip(".")
            if name not in fields.table:
                yield where
            elif (inner := fields.table[name]) is not None:
                yield from reported(value, inner, where)


TRANSFORMATIONS = {
    f"content.{inner}transformations" for inner in ("", "content.", "source.content.", "content.source.content.")
}


@pytest.mark.parametrize(
    ("kind", "known", "expected"),
    [
        (ChatCompletionMessageParam, chat.MESSAGE, set()),
        (ChatCompletionToolUnionParam, chat.TOOL, set()),
        (ResponseInputItemParam, responses.ITEM, set()),
        (FunctionToolParam, responses.TOOL, {"allowed_callers", "async", "output_schema"}),
        (MessageParam, messages.MESSAGE, TRANSFORMATIONS),
        (TextBlockParam, messages.BLOCK, set()),
        (ToolParam, messages.TOOL, {"allowed_callers", "input_examples"}),
    ],
)
def test_the_official_sdks_fields_are_known_except_for_these(kind: Any, known: Known, expected: set[str]) -> None:
    found = {path for path in reported(kind, known) if not path.startswith("tools.")}  # a row of its own
    assert found == expected


def test_schemas_in_a_schema_are_described_with_it() -> None:
    body = {"thinking": {"type": "enabled", "budget": 5, "display": None}, "stream_options": {"a": None, "b": 0}}
    assert unknown_fields(body, fields_of(ReasoningFields)) == [
        "'thinking.budget' is ignored: unknown field",
        "'stream_options.b' is ignored: unknown field",
    ]


def test_a_similar_known_name_is_suggested_at_the_place_of_the_field() -> None:
    header = as_header(
        unknown_fields(
            {"messages": [{"contents": 1, "role": "user"}]}, fields_of(ReasoningFields, messages=chat.MESSAGE)
        )
    )
    assert header[WARNING_HEADER] == "'messages[0].contents' is ignored: unknown field (did you mean 'content'?)"


def test_many_unknown_fields_are_counted_and_odd_names_are_one_line_of_ascii() -> None:
    body = {f"{n}é\r\n{'x' * 500}": 1 for n in range(1000)} | {"tools": [{"type": ["x"]}, {"type": {}}, 5, [[[{}]]]]}
    header = as_header(unknown_fields(body, fields_of(ReasoningFields, tools=chat.TOOL)))[WARNING_HEADER]
    assert header.isascii()
    assert header.isprintable()
    assert header.endswith("and 992 more")
