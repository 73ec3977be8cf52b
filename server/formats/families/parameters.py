"""Formats with markup around each argument. The function's schema determines the types unless the format has types."""

import re

from server.formats.calls.parameters import block_calls, invoke_syntax, parameter_call
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax, json_calls
from server.formats.tool_format import ToolFormat, parsers_of

_DSML = "｜DSML｜"
DEEPSEEK_DSML = ToolFormat(
    "deepseek-dsml",
    invoke_syntax("function_calls", _DSML, typed=True),
    variants=(
        (f"{_DSML}tool_calls", invoke_syntax("tool_calls", _DSML, typed=True)),
        (f"{_DSML} calls", invoke_syntax("calls", f"{_DSML} ", typed=True)),
    ),
    recognised_by=((_DSML, "invoke"),),
    tags=(_DSML,),
)
"""DeepSeek V3.2 (function_calls) and V4 (tool_calls): invocations whose parameters specify whether they are strings.

V4.1 has a space before each name (``<｜DSML｜ calls>``).
"""

_GCML = "｜GCML｜"
GIGACHAT_35 = ToolFormat(
    "gigachat-3.5", invoke_syntax("tool_calls", _GCML, typed=True), recognised_by=((_GCML,),), tags=(_GCML,)
)
"""GigaChat 3.5: DeepSeek's invocations with another prefix."""

MINIMAX_M2 = ToolFormat("minimax-m2", invoke_syntax("minimax:tool_call"))
"""MiniMax M2: invocations in a block; the schema determines the types. MiniMax M1 uses `TOOL_CALLS_TAG`."""

DOTS = ToolFormat("dots", invoke_syntax("dots_function_call"))
"""dots: invocations in a block, as MiniMax M2's; JSON in the same block is parsed as well."""

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _SEP, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
_INVOKE = '<steptml:invoke name="'
_STEP = ToolCallSyntax(
    f"{_CALL}function{_SEP}{_INVOKE}",
    ('">\n',),
    _CALL_END,
    open=_BEGIN,
    close=_END,
    separator="\n",
    arguments=invoke_syntax("", "steptml:").arguments,
)
_invoke = parameter_call(_STEP)


def _step3_call(turn: StreamParser) -> Steps[None]:
    yield from turn.word(_INVOKE)  # "function", and the separator, which models sometimes omit
    yield from _invoke(turn)
    turn.end_call()
    for marker in (_CALL_END, _SEP):
        yield from turn.skip(marker)


STEP3 = ToolFormat(
    "step3",
    _STEP,
    recognised_by=(("steptml:invoke",),),
    calls={_CALL: _step3_call},
    dropped=(_BEGIN, _END),
)
"""Step 3: invocations in a section like DeepSeek's, with plain underscores; the schema determines the types::

<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">
<steptml:parameter name="city">Paris</steptml:parameter>
</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>
"""

MINICPM_5 = ToolFormat(
    "minicpm5",
    ToolCallSyntax(
        '<function name="',
        ('">',),
        separator="\n",
        arguments=Parameters(
            '<param name="', '">', "</param>", end="</function>", verbatim=("<![CDATA[", "]]></param>")
        ),
        by_name=True,
    ),
    recognised_by=(('<function name="', '<param name="'),),
    tags=("<function", "<param"),
)
"""MiniCPM 5: names in attributes, values in CDATA if they need it; the schema determines the types::

<function name="get_weather"><param name="city"><![CDATA[Paris]]></param><param name="days">3</param></function>
"""

_ARG, _ARG_VALUE, _ARG_END = "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"
SOLAR_2 = ToolFormat(
    "solar2",
    ToolCallSyntax(
        "<|tool_call:start|>",
        ("\n",),
        separator="\n",
        arguments=Parameters(_ARG, _ARG_VALUE, _ARG_END, separator="\n", end="<|tool_call:end|>"),
    ),
    recognised_by=((_ARG, _ARG_VALUE),),
)
"""Solar Open 2: names and values between tokens; the schema determines the types::

<|tool_call:start|>get_weather
<|tool_arg:start|>city<|tool_arg:value|>Paris<|tool_arg:end|>
<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>
<|tool_call:end|>
"""

_TAG_END = "<|sep|>"
_RESPONSE = "<|open|>response<|sep|>"
_MESSAGE = '<|open|>message role="assistant"<|sep|>'
_TOOLS, _TOOLS_END = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
_KIMI_CALL = '<|open|>call tool="'
_KIMI = ToolCallSyntax(
    _KIMI_CALL,
    (('" index="', re.compile("[0-9]{1,3}"), f'"{_TAG_END}'),),
    open=_TOOLS,
    close=_TOOLS_END,
    arguments=Parameters(
        '<|open|>argument key="',
        f'" type="string"{_TAG_END}',
        "<|close|>argument<|sep|>",
        end="<|close|>call<|sep|>",
        before_json_value=('" type="', re.compile("number|integer|boolean|object|array|null"), f'"{_TAG_END}'),
    ),
)
KIMI_K3 = ToolFormat(
    "kimi-k3",
    _KIMI,
    recognised_by=(("<|open|>", "<|close|>", "<|end_of_msg|>"),),
    calls={_KIMI_CALL: parameter_call(_KIMI)},
    dropped=(
        _RESPONSE,
        "<|close|>response<|sep|>",
        _TOOLS,
        _TOOLS_END,
        _MESSAGE,
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    inline_reasoning=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    breaks=(_RESPONSE,),
    turn_start=_MESSAGE,
    leads=(_RESPONSE,),
)
"""Kimi K3: each tag has three tokens, and names are plain text; arguments have types::

    <|open|>think<|sep|>...<|close|>think<|sep|><|open|>response<|sep|>Let me look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

(all on one line).
"""

_FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END = "<function=", "</function>", "<parameter=", "</parameter>"


def _qwen_syntax(parameters: Parameters, prefix: str = "") -> ToolCallSyntax:
    opening, closing = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    return ToolCallSyntax(
        f"{opening}\n{_FUNCTION}",
        (">\n",),
        f"\n{closing}",
        separator="\n",
        arguments=parameters,
        openings=(opening,),
    )


_LINES = Parameters(
    _PARAMETER, ">\n", f"\n{_PARAMETER_END}", separator="\n", end=_FUNCTION_END, never=(f"{_PARAMETER_END}\n<",)
)
_tagged = {**parsers_of(_qwen_syntax(_LINES)), **parsers_of(_qwen_syntax(_LINES, "seed:"))}
_functions = block_calls(_FUNCTION, ("</tool_call>", "</seed:tool_call>"), parameter_call(_qwen_syntax(_LINES)))


def _untagged(turn: StreamParser) -> Steps[None]:
    """Parse calls of known functions without their tag."""
    name = yield from turn.name()
    if name not in turn.options.functions:
        raise NotMarkup
    turn.back(f"{_FUNCTION}{name}")
    yield from _functions(turn)


QWEN3_CODER = ToolFormat(
    "qwen3-coder",
    _qwen_syntax(_LINES),
    variants=(
        (
            "<seed:tool_call>",
            _qwen_syntax(Parameters(_PARAMETER, ">", _PARAMETER_END, separator="\n", end=_FUNCTION_END), "seed:"),
        ),
    ),
    recognised_by=((_FUNCTION, _PARAMETER),),
    calls={**_tagged, _FUNCTION: _untagged},
)
"""Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5; Seed-OSS with a prefix and without the new lines around values::

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    <parameter=days>
    3
    </parameter>
    </function>
    </tool_call>

    <seed:tool_call><function=get_weather><parameter=city>Paris</parameter></function></seed:tool_call>

All values are text: only the schema distinguishes "3" from 3. Qwen3-Coder sometimes omits <tool_call>, so the tag of a
known function opens a call as well. Some models of the family use Hermes' JSON.
"""


def _glm_syntax(prefix: str = "", suffix: str = "", *, section: bool = False, line: str = "\n") -> ToolCallSyntax:
    """Return the syntax with `prefix` and `suffix` in every tag. ``section``: there are tags around all calls, and one
    after each name. ``line`` ends each line.
    """

    def tag(name: str) -> str:
        return f"<{prefix}{name}{suffix}>"

    def end(name: str) -> str:
        return f"</{prefix}{name}{suffix}>"

    return ToolCallSyntax(
        tag("tool_call"),
        (f"{tag('tool_sep')}{line}" if section else line,),
        open=f"{tag('tool_calls')}\n" if section else "",
        close=f"\n{end('tool_calls')}" if section else "",
        separator="\n",
        arguments=Parameters(
            tag("arg_key"), f"{end('arg_key')}{line}{tag('arg_value')}", end("arg_value"), line, end("tool_call")
        ),
    )


GLM = ToolFormat(
    "glm",
    _glm_syntax(),
    variants=(("<tool_call>{function-name}<arg_key>", _glm_syntax(line="")),),
    recognised_by=(("<arg_key>", "<arg_value>"),),
)
"""GLM 4.5 to 4.7, Ling 3, Spark, Laguna: keys and values in tags, with new lines between them or without::

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    <arg_key>days</arg_key>
    <arg_value>3</arg_value>
    </tool_call>

Strings have no quotes, everything else is JSON: only the schema distinguishes "3" from 3. GLM 5.3 Flash sometimes
writes all of them as one JSON object after the name (``get_weather>{"city": "Paris"}``).
"""

_HUNYUAN = _glm_syntax(suffix=":opensource", section=True)
HUNYUAN = ToolFormat(
    "hunyuan",
    _HUNYUAN,
    recognised_by=((":opensource", "<arg_key"),),
    calls={"<tool_call:opensource>": parameter_call(_HUNYUAN)},
    dropped=("<tool_calls:opensource>", "</tool_calls:opensource>"),
)
"""Hunyuan 3: GLM's calls with a suffix in every tag, a tag after each name, and a section around all calls."""

K2_HORIZON = ToolFormat(
    "k2-horizon",
    _glm_syntax("ifm|"),
    dropped=("<ifm|tool_calls>", "</ifm|tool_calls>"),
    tags=("<ifm|arg_type>", "</ifm|arg_type>"),
)
"""K2 Horizon: GLM's calls with a prefix in every tag, sometimes with the values' types (``arg_type``), in a section."""

LONGCAT = ToolFormat(
    "longcat",
    json_calls("<longcat_tool_call>\n", "\n</longcat_tool_call>", separator="\n"),
    variants=(("<longcat_arg_key>", _glm_syntax("longcat_")),),
)
"""LongCat Flash: JSON in its own tags, or, in newer models, GLM's keys and values with a prefix."""
