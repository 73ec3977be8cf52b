from typing import Any

import pytest

from server.chat.conversation import Tool, Tools
from server.dialects.messages import tools as wire
from server.errors import InvalidRequest

TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": {"type": "object", "required": ["a"]}}


SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
SERVERS = [
    SEARCH,
    {"type": "web_fetch_20260318", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "advisor_20260301", "name": "advisor"},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
    {"type": "browser_toolset_20990101"},
]


def read_tools(tools: object, choice: object) -> Tools:
    """Where nothing is left out."""
    warnings: list[str] = []
    found = wire.read_tools(tools, choice, warnings).tools()
    assert warnings == []
    return found


def test_a_tool_is_a_function_with_its_schema_as_parameters() -> None:
    [tool] = read_tools([{**TOOL, "type": "custom", "cache_control": {}, "strict": True}], None).tools
    assert tool == Tool("f", "d", TOOL["input_schema"], strict=True, at="tools.0.input_schema")


def test_a_strict_tool_is_kept_to_its_schema_or_refused() -> None:
    others = [{**TOOL, "name": "g", "strict": False}, {**TOOL, "name": "h", "strict": None}]
    assert read_tools([{**TOOL, "strict": True}, *others], None).strict == {"f"}
    with pytest.raises(InvalidRequest) as caught:
        read_tools([TOOL, {**others[0], "strict": "yes"}], None)
    assert caught.value.param == "tools.1.strict"


@pytest.mark.parametrize(
    ("choice", "mode", "name"),
    [
        (None, "auto", ""),
        ({"type": "auto"}, "auto", ""),
        ({"type": "any"}, "required", ""),
        ({"type": "tool", "name": "f"}, "required", "f"),
        ({"type": "none"}, "none", ""),
        ("required", "required", ""),
        ({"type": "function", "function": {"name": "f"}}, "required", "f"),
    ],
)
def test_a_choice_says_what_may_be_called(choice: object, mode: str, name: str) -> None:
    tools = read_tools([TOOL], choice)
    assert (tools.choice, tools.name, tools.parallel) == (mode, name, None)


@pytest.mark.parametrize(("single", "parallel"), [(True, False), (False, None), (None, None)])
def test_parallel_calls_can_be_disabled(single: object, parallel: bool | None) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": single}
    assert read_tools([TOOL], choice).parallel is parallel


def test_tools_of_anthropics_servers_are_skipped_and_told() -> None:
    warnings: list[str] = []
    found = wire.read_tools([*SERVERS, TOOL], {"type": "any"}, warnings).tools()
    assert ([tool.name for tool in found.tools], found.choice) == (["f"], "required")
    assert [warning.split(":")[0] for warning in warnings] == [
        f"tools of type '{server['type']}' are left out" for server in SERVERS
    ]
    assert [warning.split(": ")[1].split()[0] for warning in warnings] == ["only"] * 5 + ["no"] * 2


def test_a_tool_of_ones_own_may_have_the_name_of_one_that_is_skipped() -> None:
    own = {**TOOL, "name": "web_search"}
    assert wire.read_tools([SEARCH, own], {"type": "tool", "name": "web_search"}, []).tools().name == "web_search"
