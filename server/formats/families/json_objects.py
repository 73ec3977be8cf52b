"""Formats whose calls are JSON objects with the name and the arguments, in tags, lists or lines."""

import re

from server.formats.calls import json_text
from server.formats.calls.json_calls import calls_by_opening, several, strict_call
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax, WholeJson, json_calls, json_list
from server.formats.tool_format import FirstCall, ToolFormat

_ANSWER = ("<|START_RESPONSE|>", "<|START_TEXT|>")
COMMAND_R = ToolFormat(
    "command-r",
    ToolCallSyntax(
        ('{"tool_call_id": "', re.compile("[0-9]{1,4}"), '", "tool_name": "'),
        ('", "parameters": ',),
        "}",
        open="<|START_ACTION|>[\n    ",
        close="\n]<|END_ACTION|>",
        separator=",\n    ",
    ),
    dropped=(*_ANSWER, "<|END_RESPONSE|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>"),
    inline_reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
    breaks=_ANSWER,
    turn_start="<|CHATBOT_TOKEN|>",
    leads=_ANSWER,
)
"""Command R7B, Command A and Cohere's MoE: reasoning, then an answer or a list of actions::

    <|START_THINKING|>I need the weather.<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
    ]<|END_ACTION|>

    <|START_THINKING|>...<|END_THINKING|><|START_RESPONSE|>It is sunny.<|END_RESPONSE|>

The MoE writes TEXT for RESPONSE. The template numbers calls itself, so the model's ids are not passed on.
"""

COMMAND_R_PLUS = ToolFormat(
    "command-r-plus",
    ToolCallSyntax(
        '{\n        "tool_name": "',
        ('",\n        "parameters": ',),
        "\n    }",
        open="Action:\n```json\n[\n    ",
        close="\n]```",
        separator=",\n    ",
        openings=("Action:\n```json", "Action: ```json", "Action:```json"),
    ),
    recognised_by=(("'Action:' followed by",), ("\\'Action:\\' followed by",)),
)
"""Command R and R+ (2024): a list of actions in a fence."""

GIGACHAT = ToolFormat(
    "gigachat",
    json_calls(
        "<|function_call|>",
        openings=("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n"),
        several=False,
    ),
    recognised_by=(("<|message_sep|>", "<|role_sep|>"),),
)
"""GigaChat 3 and 3.1: one call after a tag, or as its own message::

<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}

Let me look.<|message_sep|>

function call<|role_sep|>
{"name": "get_weather", "arguments": {"city": "Paris"}}
"""

MISTRAL = ToolFormat("mistral", json_list("[TOOL_CALLS]"), id_length=9)
"""Mistral Nemo, Mistral Small 2409 and their relatives: a list after a tag, with ids in the calls.

Ids have nine letters and digits: the template rejects others.
"""

NEMOTRON = ToolFormat("nemotron", json_list("<TOOLCALL>", "</TOOLCALL>"))
"""Nemotron Nano 2 and Llama Nemotron: a list in a tag. Nemotron 3 uses `QWEN3_CODER`."""

GRANITE_3 = ToolFormat(
    "granite3",
    json_list("<|tool_call|>", openings=("<|tool_call|>", "<tool_call>"), closing="</tool_call>"),
    recognised_by=(("<|tool_call|>", "<|start_of_role|>"),),
    answer_tags=("<response>", "</response>"),
)
"""Granite 3.0 to 3.3: a list after a tag; an answer after reasoning has its own tags. Granite 4 uses `HERMES`."""

PHI4_MINI = ToolFormat(
    "phi4-mini",
    json_list("<|tool_call|>", "<|/tool_call|>"),
    recognised_by=(("<|tool|>", "<|/tool|>"),),
    calls=calls_by_opening("<|tool_call|>", "functools", close="<|/tool_call|>"),
)
"""Phi-4-mini: a list after one of two openings."""

INTERNLM = ToolFormat(
    "internlm",
    json_calls(
        "<|action_start|><|plugin|>\n",
        "<|action_end|>",
        key="parameters",
        openings=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        separator="\n",
    ),
    recognised_by=(("<|action_start|>", "<|plugin|>"),),
)
"""InternLM 2.5 and 3, Intern-S1: its own tags, with or without a space between two of them::

<|action_start|><|plugin|>
{"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>

Code for the interpreter (``<|action_start|><|interpreter|>``) stays content.
"""

PANGU = ToolFormat("pangu", json_list("[unused11]", "[unused12]"))
"""openPangu Embedded: a list between unnamed tokens, and reasoning between two others, ``[unused16]...[unused17]``."""

GRANITE_20B = ToolFormat(
    "granite-20b",
    json_calls("<function_call> ", separator="\n"),
    recognised_by=(("<function_call>", "<function_response>"),),
)
"""Granite 20B function calling: each call after a tag without a closing tag."""

HUNYUAN_A13B = ToolFormat(
    "hunyuan-a13b",
    json_list("<tool_calls>", "</tool_calls>"),
    recognised_by=(("<answer>", "</answer>", "<think>"),),
    answer_tags=("<answer>", "</answer>"),
    leads=("<answer>\n",),
    again="\n",
)
"""Hunyuan A13B and dense ones: a list in a tag; the answer after the reasoning is in ``<answer>`` tags."""

TOOL_CALLS_TAG = ToolFormat("tool-calls-tag", HUNYUAN_A13B.syntax)
"""Apriel and MiniMax M1: a tag around all calls, as a list or line by line."""

_HERMES = json_calls("<tool_call>\n", "\n</tool_call>", separator="\n")
ERNIE = ToolFormat(
    "ernie",
    _HERMES,
    recognised_by=(("<response>", "</response>", "<tool_call>"),),
    answer_tags=("<response>", "</response>"),
    leads=("<response>\n",),
    again="\n\n",
)
"""ERNIE 4.5 Thinking: Hermes' calls; the answer after the reasoning is in ``<response>`` tags."""

HERMES = ToolFormat("hermes", _HERMES)
"""Hermes 2 and 3, Qwen 2.5, 3 and QwQ, Granite 4, Bielik, MiMo, Reka: one call after the other::

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

_plain_calls = several(strict_call)
XLAM = ToolFormat(
    "xlam",
    json_list("", starts=('[{"name": "',), by_name=True),
    recognised_by=(('[{"name": "tool_call_name"',),),
    first_call=FirstCall(
        "[{", _plain_calls, ("```json", "```", "[TOOL_CALLS]", "<tool_call>"), ("```", "</tool_call>")
    ),
)
"""xLAM 2: a JSON list as the whole message, sometimes in a fence or after a tag::

[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]

Only for known functions: any other list is an answer.
"""

_PYTHON_TAGS = ("<|python_tag|>", "<|python_start|>")
_STARTS = ('{"name": "', '{"name":"', '{"type": "function", "name": "', '{"type":"function","name":"')
LLAMA_3 = ToolFormat(
    "llama3",
    ToolCallSyntax(
        _STARTS[0],
        ('", "parameters": ',),
        "}",
        separator="; ",
        whole=WholeJson("parameters"),
        openings=tuple(f"{tag}{start}" for tag in _PYTHON_TAGS for start in _STARTS),
        starts=_STARTS,
        by_name=True,
        rest_of_list=True,
    ),
    recognised_by=(
        ("<|python_tag|>", '"parameters": '),
        ('in the format {"name": function name', '"parameters": '),
    ),
    calls=calls_by_opening(*_PYTHON_TAGS, close="<|python_end|>", separator=";"),
    first_call=FirstCall("{", several(strict_call, *_PYTHON_TAGS, close="<|python_end|>", separators=(";",))),
    tags=("<|python_end|>",),
)
"""Llama 3.1 to 3.3 and Llama 4: the whole message is the call, sometimes after a tag::

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}

Built-in tools (``<|python_tag|>brave_search.call(query="...")``) stay content.
"""

FIREFUNCTION = ToolFormat(
    "firefunction", json_list("functools", openings=("functools[",)), calls=calls_by_opening("functools")
)
"""Firefunction 2: a list after a word."""


def _generic_calls(turn: StreamParser) -> Steps[None]:
    n_before = len(turn.raw)
    yield from turn.expect("{")
    yield from turn.spaces()
    key = yield from json_text.string(turn)
    if key not in ("tool_calls", "tool_call"):
        turn.back("".join(turn.raw[n_before:]))
        yield from strict_call(turn)
        return
    turn.certain()
    yield from turn.spaces()
    yield from turn.expect(":")
    yield from turn.spaces()
    yield from _plain_calls(turn) if key == "tool_calls" else strict_call(turn)
    yield from turn.skip("}")


GENERIC = ToolFormat(
    "generic",
    ToolCallSyntax(
        '{"name": "',
        ('", "arguments": ',),
        "}",
        open='{"tool_calls": [',
        close="]}",
        separator=", ",
        whole=WholeJson("arguments", "tool_calls"),
        starts=('{"tool_calls":',),
    ),
    first_call=FirstCall("{", _generic_calls, ("```json", "```"), ("```",)),
)
"""Models whose template knows no tools: JSON as the whole message, as the instructions demand::

    {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}

A fence, a single ``tool_call``, or the call without anything around it are parsed as well, but only for known
functions.
"""
