"""Formats with the function's name in markup and the arguments as one JSON object."""

import re
from dataclasses import replace

from server.formats.calls import json_text
from server.formats.calls.json_calls import calls_by_opening, json_arguments, named_call, several
from server.formats.calls.json_text import escaped
from server.formats.parsing.reader import EndOfText, NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import TOOL_NAME, ToolCallSyntax
from server.formats.tool_format import ToolFormat

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NAME = TOOL_NAME.pattern
_kimi_call = named_call(
    rf"(?=(?P<id>(?:functions\.)?{_NAME}?:\d+$)?)(?:functions\.)?(?P<name>{_NAME}?)(?::\d+)?",
    (_ARGUMENTS,),
    (_CALL_END,),
)
KIMI_K2 = ToolFormat(
    "kimi-k2",
    ToolCallSyntax(
        f"{_CALL}functions.",
        ((":", re.compile("[0-9]{1,3}"), _ARGUMENTS),),
        _CALL_END,
        open=_SECTION,
        close=_SECTION_END,
    ),
    recognised_by=((_SECTION, _CALL),),
    calls={_CALL: _kimi_call},
    dropped=(_SECTION, _SECTION_END),
)
"""Kimi K2: a section of calls, whose ids contain the function's name and a counter::

    <think>...</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
    {"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>

K2 sometimes omits the section's tags or the end of its reasoning. Its ids reach the client, because the model expects
them in the results.
"""

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_MISSPELT = ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>")
_DS_CALL, _SEP, _DS_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_ds_call = named_call(rf"(?:.*{_SEP}(?=.))?(?P<name>.+?)(?:{_SEP})?", ("```json", "```", "{"), ("```", _DS_END, _END))
_DS_SYNTAX = ToolCallSyntax(_DS_CALL, (_SEP,), _DS_END, _BEGIN, _END, openings=(_BEGIN, *_MISSPELT))
_DS_FENCED = replace(
    _DS_SYNTAX,
    before=f"{_DS_CALL}function{_SEP}",
    after_name=("\n```json\n",),
    after=f"\n```{_DS_END}",
    separator="\n",
)


def _section(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    yield from turn.expect(_DS_CALL)
    yield from _ds_call(turn)


DEEPSEEK = ToolFormat(
    "deepseek",
    _DS_SYNTAX,
    variants=(("```json", _DS_FENCED),),
    recognised_by=((_BEGIN,),),
    calls={**dict.fromkeys((_BEGIN, *_MISSPELT), _section), _DS_CALL: _ds_call},
)
"""DeepSeek R1, V3 and their distillations, and DeepSeek V3.1::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

R1 misspells the first tag; the known spellings are parsed as well.
"""

_MCP, _MCP_END = "<use_mcp_tool>", "</use_mcp_tool>"
_SERVER, _SERVER_END = "<server_name>", "</server_name>"
_TOOL, _TOOL_END = "<tool_name>", "</tool_name>"
_GIVEN, _GIVEN_END = "<arguments>", "</arguments>"
_mcp_call = named_call(
    rf"(?:(?:{_SERVER})?.*?{_SERVER_END}\s*)?(?:{_TOOL})?(?P<name>.*?){_TOOL_END}",
    (_GIVEN,),
    (_GIVEN_END, _MCP_END),
)
MCP_TOOL = ToolFormat(
    "mcp-tool",
    ToolCallSyntax(
        (_SERVER, re.compile("[A-Za-z0-9_-]{1,64}"), f"{_SERVER_END}\n{_TOOL}"),
        (f"{_TOOL_END}\n{_GIVEN}\n",),
        f"\n{_GIVEN_END}",
        open=f"{_MCP}\n",
        close=f"\n{_MCP_END}",
        separator="\n",
    ),
    recognised_by=((_MCP, _TOOL),),
    calls=dict.fromkeys((_MCP, _SERVER, _TOOL), _mcp_call),
)
"""MiroThinker: a tool of a server, by their names, and JSON."""

_OPEN, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
# Mistral's own tokenizer omits [ARGS] from the text
_mistral_call = named_call(r"(?P<name>.*?)(?:\[CALL_ID\](?P<id>.*))?", (_ARGS, "{"))
MISTRAL_ARGS = ToolFormat(
    "mistral-args",
    ToolCallSyntax(_OPEN, (_ARGS, (_CALL_ID, re.compile("[A-Za-z0-9]{9}"), _ARGS))),
    recognised_by=((_OPEN, _ARGS),),
    calls=calls_by_opening(_OPEN, other=_mistral_call),
    id_length=9,
)
"""Mistral Small 3.2, Magistral, Devstral, Ministral 3: the name before its JSON::

    [THINK]...[/THINK]Let me look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}
    [TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}

The older list (`json_objects.MISTRAL`) is parsed as well.
"""

_TURN = "<|begin|>assistant"
_SOLAR_CALL, _SOLAR_NAME, _SOLAR_ARGUMENTS = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
_SOLAR_END, _SOLAR_CALLS = "<|tool_call:end|>", "<|tool_calls|>"
_solar_call = named_call(rf"(?P<id>.*?){re.escape(_SOLAR_NAME)}(?P<name>.*)", (_SOLAR_ARGUMENTS,), (_SOLAR_END,))
SOLAR = ToolFormat(
    "solar",
    ToolCallSyntax(
        (_SOLAR_CALL, re.compile("[A-Za-z0-9]{1,32}"), _SOLAR_NAME),
        (_SOLAR_ARGUMENTS,),
        _SOLAR_END,
        open=_SOLAR_CALLS,
    ),
    recognised_by=((_SOLAR_CALL, _SOLAR_NAME),),
    calls={_SOLAR_CALL: _solar_call},
    dropped=(_TURN, "<|content|>", _SOLAR_CALLS, "<|calls|>"),
    inline_reasoning=("<|think|>", "<|end|>"),
    breaks=("<|content|>",),
    turn_start=_TURN,
    leads=("<|content|>",),
    again=_TURN,
)
"""Solar Open: each part of a turn has its own start; ids are the model's::

<|think|>...<|end|><|begin|>assistant<|content|>It is sunny.<|end|>
<|think|>...<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather
<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>
"""

_TOOLS, _TOOLS_END = "<|tools_prefix|>", "<|tools_suffix|>"


def _apertus_call(turn: StreamParser) -> Steps[None]:
    yield from turn.expect("{")
    yield from turn.spaces()
    name = yield from json_text.string(turn)
    yield from turn.spaces()
    yield from turn.expect(":")
    yield from json_arguments(turn, name)
    yield from turn.skip("}")


APERTUS = ToolFormat(
    "apertus",
    ToolCallSyntax(
        '{"',
        ('": ',),
        "}",
        open=f"{_TOOLS}[",
        close=f"]{_TOOLS_END}",
        separator=", ",
    ),
    calls={_TOOLS: several(_apertus_call, close=_TOOLS_END)},
    dropped=("<|assistant_end|>",),
    inline_reasoning=("<|inner_prefix|>", "<|inner_suffix|>"),
    turn_start="<|assistant_start|>",
)
"""Apertus: a JSON list in which each call's name is its key; reasoning between its own prefixes::

<|inner_prefix|>...<|inner_suffix|><|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>
"""

_START, _STOP = "<|assistant|>", "<|observation|>"


def _glm4(turn: StreamParser) -> Steps[None]:
    """Parse calls at the start of each message."""
    if not turn.options.callable:
        return
    while True:
        while (yield from turn.attempt("", _glm4_call(turn), doubtful=True)):
            pass
        while (yield from turn.content_until(_START, _STOP)) == _STOP:
            pass


def _glm4_call(turn: StreamParser) -> Steps[None]:
    yield from turn.spaces()
    name = yield from turn.name()
    if name not in turn.options.functions:
        raise NotMarkup
    yield from turn.expect("\n", " \n")
    turn.certain()
    yield from json_arguments(turn, name)


GLM4 = ToolFormat(
    "glm4",
    ToolCallSyntax("", ("\n",), separator="\n", openings=(_START,), starts=("",), by_name=True, rest_of_list=True),
    recognised_by=((_STOP, "Json 格式表示调用的参数"),),
    parser=_glm4,
    tags=(_STOP,),
)
"""GLM-4 and GLM-4-0414: the function's name on its own line, then its JSON; further calls start a new message::

    get_weather
    {"city": "Paris"}<|observation|>

Only for known functions, because only their names distinguish such a line from an answer's.
"""

_FUNCTION, _FUNCTION_END, _CODE = "<function=", "</function>", "<|python_tag|>"
_functionary_call = named_call("(?P<name>.*)", (">",), (_FUNCTION_END,))


def _code(turn: StreamParser) -> Steps[None]:
    """Parse a call of ``python``, whose argument is the rest of the text. Raises `EndOfText`."""
    turn.begin("python")
    turn.arguments('{"code": "')
    try:
        while True:
            end = yield from turn.until(("<|eom_id|>", "<|eot_id|>"), lambda text: turn.arguments(escaped(text)))
            turn.arguments(escaped(end))
    except EndOfText:
        turn.arguments('"}')
        raise


def _python_code(turn: StreamParser) -> Steps[None]:
    if "python" not in turn.options.functions:
        raise NotMarkup
    yield from _code(turn)


FUNCTIONARY_31 = ToolFormat(
    "functionary-v3.1",
    ToolCallSyntax(_FUNCTION, (">",), _FUNCTION_END, separator="\n", by_name=True),
    calls={_FUNCTION: _functionary_call, _CODE: _python_code},
)
"""Functionary 3.1, and Llama models with custom functions: the name in the tag::

    <function=get_weather>{"city": "Paris"}</function>
    <|python_tag|>print(1 + 1)

The code after <|python_tag|> is a call of the function ``python`` if there is one.
"""

_TO = ">>>"


def _functionary32(turn: StreamParser) -> Steps[None]:
    while True:
        opening = yield from turn.content_until(_TO)
        yield from turn.attempt(opening, _recipient(turn))


def _recipient(turn: StreamParser) -> Steps[None]:
    """Parse a message. The recipient ``all`` is the user; a line that is no recipient is content."""
    name, _ = yield from turn.word("\n")
    if name == "all":
        return
    if not turn.options.callable or not turn.knows(name):
        raise NotMarkup
    if name == "python" and (yield from turn.peek()) != "{":
        yield from _code(turn)
    yield from json_arguments(turn, name)


FUNCTIONARY_32 = ToolFormat(
    "functionary-v3.2",
    ToolCallSyntax("", ("\n",), separator=_TO, openings=(_TO,), starts=("",), by_name=True),
    recognised_by=((">>>all", ">>>${recipient}"),),
    parser=_functionary32,  # a truncated recipient is markup
    leads=("all\n",),
    turn_start="assistant<|end_header_id|>\n\n",
)
"""Functionary 3.2: recipients, each on its own line; the prompt ends with the first ``>>>``::

    all
    Let me look.>>>get_weather
    {"city": "Paris"}>>>get_time
    {"zone": "Europe/Paris"}

Text for ``python`` is code.
"""
