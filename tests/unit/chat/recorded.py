"""Outputs of each family, written by hand from its documented format, and what they mean.

Texts that a format's own documentation breaks over lines stand here as the model writes them.
"""

import re
from dataclasses import dataclass
from typing import Any

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}, "tag": {"type": "string"}}},
    },
    "required": ["city"],
}
ZONE: dict[str, Any] = {"type": "object", "properties": {"zone": {"type": ["string", "null"]}}}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's clients send it."""
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (tool("get_weather", PARAMETERS), tool("get_time", ZONE))

FULL = '{"city": "Paris", "days": 3, "exact": true, "hours": [8, 12], "place": {"x": 1.5, "tag": "a\\"b"}}'
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


@dataclass(frozen=True, slots=True)
class Recorded:
    """``sign``: what the template shows of thoughts. ``prompt``: how the prompt begins the assistant's turn."""

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    sign: str = ""
    prompt: str = ""


def call(arguments: str, name: str = "name", key: str = "arguments", more: str = "") -> str:
    """A call as most formats write it."""
    return f'{{"{name}": "get_weather", "{key}": {arguments}{more}}}'


CALL, CALL_PARIS, CALL_ROME = call(FULL), call(PARIS), call(ROME)
BOTH = f"[{CALL_PARIS}, {CALL_ROME}]"
WEATHER = ("get_weather", FULL)
TWO = (("get_weather", PARIS), ("get_weather", ROME))
THINK = "</think>"


def hermes(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


_XML = """<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
<parameter=days>
3
</parameter>
<parameter=exact>
True
</parameter>
<parameter=hours>
[8, 12]
</parameter>
<parameter=place>
{"x": 1.5, "tag": "a\\"b"}
</parameter>
</function>
</tool_call>"""
_GLM = """<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>exact</arg_key>
<arg_value>true</arg_value>
<arg_key>hours</arg_key>
<arg_value>[8, 12]</arg_value>
<arg_key>place</arg_key>
<arg_value>{"x": 1.5, "tag": "a\\"b"}</arg_value>
</tool_call>"""
_INVOKE = """<invoke name="get_weather">
<parameter name="city">Paris</parameter>
<parameter name="days">3</parameter>
<parameter name="exact">true</parameter>
<parameter name="hours">[8, 12]</parameter>
<parameter name="place">{"x": 1.5, "tag": "a\\"b"}</parameter>
</invoke>"""


def invoke(city: str, prefix: str = "", attribute: str = "") -> str:
    return (
        f'<{prefix}invoke name="get_weather">\n<{prefix}parameter name="city"{attribute}>{city}</{prefix}parameter>\n'
        f"</{prefix}invoke>"
    )


def dsml(text: str) -> str:
    typed = text.replace('name="city"', 'name="city" string="true"')
    for key in ("days", "exact", "hours", "place"):
        typed = typed.replace(f'name="{key}"', f'name="{key}" string="false"')
    return typed.replace("<", "<｜DSML｜").replace("<｜DSML｜/", "</｜DSML｜")


NS = "]<]minimax[>["
PYTHON = "get_weather(city='Paris', days=3, exact=True, hours=[8, 12], place={'x': 1.5, \"tag\": 'a\"b'})"
K3_ARGUMENT = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'


def k3(*arguments: tuple[str, str, str]) -> str:
    inner = "".join(K3_ARGUMENT.format(*argument) for argument in arguments)
    return f'<|open|>call tool="get_weather" index="1"<|sep|>{inner}<|close|>call<|sep|>'


K3_FULL = k3(
    ("city", "string", "Paris"),
    ("days", "number", "3"),
    ("exact", "boolean", "true"),
    ("hours", "array", "[8, 12]"),
    ("place", "object", '{"x": 1.5, "tag": "a\\"b"}'),
)
GEMMA = '{city:<|"|>Paris<|"|>,days:3,exact:true,hours:[8,12],place:{x:1.5,tag:<|"|>a"b<|"|>}}'
ID = ', "id": "a1b2c3d4e"'


def cohere(number: int, arguments: str) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": "get_weather", "parameters": {arguments}}}'


RECORDED: tuple[Recorded, ...] = (
    Recorded("hermes", hermes(FULL), calls=(WEATHER,)),
    Recorded(
        "hermes",
        f"<think>\nThe user asks.\n</think>\n\nLet me see.\n{hermes(PARIS)}\n{hermes(ROME)}",
        content="Let me see.",
        reasoning="The user asks.",
        calls=TWO,
        sign=THINK,
    ),
    Recorded("qwen3-coder", f"I look.\n\n{_XML}", content="I look.", calls=(WEATHER,)),
    Recorded(
        "qwen3-coder",
        "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "qwen3-coder",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=place>{'x': 1.5, 'tag': None}</parameter>\n</function>\n</seed:tool_call>",
        reasoning="Hm.",
        calls=(("get_weather", '{"city": "Paris", "place": {"x": 1.5, "tag": null}}'),),
        sign="</seed:think>",
    ),
    Recorded("llama3", call(FULL, key="parameters"), calls=(WEATHER,)),
    Recorded(
        "llama3",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": '
        + PARIS
        + "}; "
        + call(ROME, key="parameters"),
        calls=TWO,
    ),
    Recorded("pythonic", f"[{PYTHON}]", calls=(WEATHER,)),
    Recorded(
        "pythonic",
        "<|python_start|>[get_weather(city=\"Paris\"), get_weather('Rome')]<|python_end|>",
        calls=TWO,
    ),
    Recorded("gemma3", f"I look.\n```tool_code\nprint({PYTHON})\n```", content="I look.", calls=(WEATHER,)),
    Recorded("gemma3", '```tool_code\nget_weather(city="Paris")\nget_weather(city="Rome")\n```', calls=TWO),
    Recorded("gemma3", "[get_weather(city='Paris'), get_weather(city='Rome')]", calls=TWO),
    Recorded(
        "mistral",
        f"[TOOL_CALLS][{call(FULL, more=ID)}]",
        calls=(WEATHER,),
    ),
    Recorded(
        "mistral",
        f'[TOOL_CALLS] [{CALL_PARIS}, {{"arguments": {ROME}, "name": "get_weather"}}]',
        calls=TWO,
    ),
    Recorded(
        "mistral-args",
        f"[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_weather[ARGS]{ROME}",
        content="I look.",
        reasoning="Hm.",
        calls=TWO,
        sign="[/THINK]",
    ),
    Recorded("mistral-args", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{FULL}", calls=(WEATHER,)),
    Recorded(
        "deepseek",
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ROME}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
        prompt="<｜Assistant｜><think>\n",
    ),
    Recorded(
        "deepseek",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{FULL}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="I look.",
        calls=(WEATHER,),
    ),
    Recorded(
        "deepseek-dsml",
        dsml(f"<function_calls>\n{_INVOKE}\n</function_calls>"),
        calls=(WEATHER,),
    ),
    Recorded(
        "deepseek-dsml",
        "Hm.</think>I look.\n\n" + dsml(f"<tool_calls>\n{invoke('Paris')}\n{invoke('Rome')}\n</tool_calls>"),
        content="I look.",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
        prompt="<｜Assistant｜><think>",
    ),
    Recorded(
        "harmony",
        "<|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.get_weather <|constrain|>json<|message|>{FULL}",
        reasoning="I need the weather.",
        calls=(WEATHER,),
        prompt="<|start|>assistant",
    ),
    Recorded(
        "harmony",
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{PARIS}<|call|>"
        f"<|start|>assistant<|channel|>analysis to=functions.get_weather<|message|>{ROME}<|call|>",
        content="I look.",
        reasoning="Two.",
        calls=TWO,
        prompt="<|start|>assistant",
    ),
    Recorded(
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.",
        content="It is sunny.",
        reasoning="Easy.",
        prompt="<|start|>assistant",
    ),
    Recorded("gemma4", f"<|tool_call>call:get_weather{GEMMA}<tool_call|>", calls=(WEATHER,)),
    Recorded(
        "gemma4",
        '<|channel>thought\nHm.<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        content="I look.",
        reasoning="Hm.",
        calls=TWO,
        prompt="<|turn>model\n",
    ),
    Recorded("glm", f"<think>Hm.</think>\nI look.\n{_GLM}", "I look.", "Hm.", (WEATHER,), sign=THINK),
    Recorded(
        "glm",
        "Hm.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
        prompt="<|assistant|><think>",
    ),
    Recorded(
        "hunyuan",
        "I look.<tool_calls:opensource>\n"
        + re.sub(r"(tool_call|arg_key|arg_value)>", r"\1:opensource>", _GLM).replace(
            "get_weather\n", "get_weather<tool_sep:opensource>\n"
        )
        + "\n</tool_calls:opensource>",
        content="I look.",
        calls=(WEATHER,),
        sign=":opensource",
    ),
    Recorded(
        "hunyuan",
        "<think:opensource>Hm.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>get_weather"
        "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris"
        "</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        reasoning="Hm.",
        calls=TWO,
        sign=":opensource",
    ),
    Recorded(
        "kimi-k2",
        "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1"
        f"<|tool_call_argument_begin|>{ROME}<|tool_call_end|><|tool_calls_section_end|>",
        content="I look.",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
    ),
    Recorded(
        "kimi-k2",
        f"<think>Hm.<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{FULL}",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign=THINK,
    ),
    Recorded(
        "kimi-k3",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
        f"{K3_FULL}<|close|>tools<|sep|><|close|>message<|sep|>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        prompt='<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
    ),
    Recorded(
        "kimi-k3",
        f"<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>{k3(('city', 'string', 'Paris'))}"
        f"{k3(('city', 'string', 'Rome'))}<|close|>tools<|sep|><|close|>message<|sep|>",
        calls=TWO,
        prompt='<|open|>message role="assistant"<|sep|>',
    ),
    Recorded(
        "command-r",
        "<|START_THINKING|>Hm.<|END_THINKING|>" + f"<|START_ACTION|>[\n    {cohere(0, FULL)}\n]<|END_ACTION|>",
        reasoning="Hm.",
        calls=(WEATHER,),
    ),
    Recorded(
        "command-r",
        "Hm.<|END_THINKING|>" + f"<|START_ACTION|>[\n    {cohere(0, PARIS)},\n    {cohere(1, ROME)}\n]<|END_ACTION|>",
        reasoning="Hm.",
        calls=TWO,
        prompt="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
    ),
    Recorded(
        "command-r",
        "<|START_THINKING|>Easy.<|END_THINKING|><|START_RESPONSE|>It is sunny.<|END_RESPONSE|>",
        content="It is sunny.",
        reasoning="Easy.",
    ),
    Recorded(
        "command-r-plus",
        f"I look.\nAction:\n```json\n[\n    {call(FULL, 'tool_name', 'parameters')}\n]```",
        content="I look.",
        calls=(WEATHER,),
    ),
    Recorded(
        "command-r-plus",
        f"Action: ```json\n[{call(PARIS, 'tool_name', 'parameters')}, {call(ROME, 'tool_name', 'parameters')}]\n```",
        calls=TWO,
    ),
    Recorded("functionary-v3.1", f"I look.<function=get_weather>{FULL}</function>", "I look.", calls=(WEATHER,)),
    Recorded(
        "functionary-v3.1",
        f"<function=get_weather>{PARIS}</function>\n<function=get_weather>{ROME}</function>",
        calls=TWO,
    ),
    Recorded(
        "functionary-v3.2",
        f"all\nI look.>>>get_weather\n{PARIS}>>>get_weather\n{ROME}",
        content="I look.",
        calls=TWO,
        prompt="<|start_header_id|>assistant<|end_header_id|>\n\n>>>",
    ),
    Recorded("functionary-v3.2", f"get_weather\n{FULL}", calls=(WEATHER,), prompt="assistant<|end_header_id|>\n\n>>>"),
    Recorded("granite3", f"<|tool_call|>[{CALL}]", calls=(WEATHER,)),
    Recorded(
        "granite3",
        f"<tool_call>{BOTH}",
        calls=TWO,
    ),
    Recorded(
        "granite3",
        "<think>Easy.</think>\n\n<response>It is sunny.</response>",
        content="It is sunny.",
        reasoning="Easy.",
        sign=THINK,
    ),
    Recorded("minimax-m2", f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>", calls=(WEATHER,)),
    Recorded(
        "minimax-m2",
        f"Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n{invoke('Paris')}\n{invoke('Rome')}\n</minimax:tool_call>",
        content="I look.",
        reasoning="Hm.",
        calls=TWO,
        sign=THINK,
        prompt="]~b]ai\n<think>\n",
    ),
    Recorded(
        "minimax-m3",
        f'<mm:think>Hm.</mm:think>I look.{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Paris{NS}</city>'
        f"{NS}<days>3{NS}</days>{NS}<exact>true{NS}</exact>{NS}<hours>{NS}<item>8{NS}</item>{NS}<item>12{NS}</item>"
        f'{NS}</hours>{NS}<place>{NS}<x>1.5{NS}</x>{NS}<tag>a"b{NS}</tag>{NS}</place>{NS}</invoke>\n{NS}</tool_call>',
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign="</mm:think>",
    ),
    Recorded(
        "minimax-m3",
        f'{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Paris{NS}</city>{NS}</invoke>\n'
        f'{NS}<invoke name="get_weather">{NS}<city>Rome{NS}</city>{NS}</invoke>\n{NS}</tool_call>',
        calls=TWO,
    ),
    Recorded(
        "nemotron",
        f"Hm.\n</think>\n<TOOLCALL>[{CALL}]</TOOLCALL>\n",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign=THINK,
        prompt="<SPECIAL_11>Assistant\n<think>\n",
    ),
    Recorded(
        "nemotron",
        f"<TOOLCALL>{BOTH}</TOOLCALL>",
        calls=TWO,
    ),
    Recorded(
        "phi4-mini",
        f"<|tool_call|>[{CALL}]<|/tool_call|>",
        calls=(WEATHER,),
    ),
    Recorded(
        "phi4-mini",
        f"functools{BOTH}",
        calls=TWO,
    ),
    Recorded("firefunction", f" functools[{CALL}]", calls=(WEATHER,)),
    Recorded(
        "firefunction",
        f"functools{BOTH}",
        calls=TWO,
    ),
    Recorded(
        "tool-calls-tag",
        f"The weather.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{call(FULL, more=ID)}]</tool_calls>",
        reasoning="The weather.",
        calls=(WEATHER,),
        sign="[BEGIN FINAL RESPONSE]",
        prompt="<|begin_assistant|>\nHere are my reasoning steps:\n",
    ),
    Recorded(
        "tool-calls-tag",
        f"<tool_calls>\n{CALL_PARIS}\n{CALL_ROME}\n</tool_calls>",
        calls=TWO,
    ),
    Recorded(
        "gigachat",
        f"I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}",
        content="I look.",
        calls=(WEATHER,),
    ),
    Recorded("gigachat", f"<|function_call|>{CALL_PARIS}", calls=TWO[:1]),
    Recorded(
        "apertus",
        f'<|inner_prefix|>Hm.<|inner_suffix|>I look.<|tools_prefix|>[{{"get_weather": {FULL}}}]<|tools_suffix|>',
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        prompt="<|assistant_start|>",
    ),
    Recorded(
        "apertus",
        f'<|tools_prefix|>[{{"get_weather": {PARIS}}}, {{"get_weather": {ROME}}}]<|tools_suffix|>',
        calls=TWO,
    ),
    Recorded(
        "lfm2",
        f"<think>Hm.</think>I look.<|tool_call_start|>[{PYTHON}]<|tool_call_end|>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign=THINK,
    ),
    Recorded(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris"), get_weather(city="Rome")]<|tool_call_end|>',
        calls=TWO,
    ),
    Recorded(
        "solar",
        "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{PARIS}<|tool_call:end|><|tool_call:begin|>f6g7h8i9j0<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{ROME}<|tool_call:end|><|calls|>",
        reasoning="Hm.",
        calls=TWO,
        prompt="<|begin|>assistant",
    ),
    Recorded(
        "solar",
        "<|think|>Easy.<|end|><|begin|>assistant<|content|>It is sunny.<|end|>",
        content="It is sunny.",
        reasoning="Easy.",
        prompt="<|begin|>assistant",
    ),
    Recorded(
        "minicpm5",
        'Hm.\n</think>\n\nI look.\n<function name="get_weather"><param name="city"><![CDATA[Paris]]></param>'
        '<param name="days">3</param><param name="exact">True</param><param name="hours">[8, 12]</param>'
        "<param name=\"place\">{'x': 1.5, 'tag': 'a\"b'}</param></function>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign=THINK,
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "minicpm5",
        '<function name="get_weather"><param name="city">Paris</param></function>\n'
        '<function name="get_weather"><param name="city">Rome</param></function>',
        calls=TWO,
    ),
    Recorded(
        "muse",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant"
        " to=get_weather<|message|><atem:function_calls>\n"
        + _INVOKE.replace("<", "<atem:").replace("<atem:/", "</atem:")
        + "\n</atem:function_calls><|eot|>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
        prompt="<|start|>assistant",
    ),
    Recorded(
        "muse",
        f" to=get_weather<|message|><atem:function_calls>\n{invoke('Paris', 'atem:')}\n</atem:function_calls><|eom|>"
        f"<|start|>assistant to=get_weather<|message|><atem:function_calls>\n{invoke('Rome', 'atem:')}\n"
        "</atem:function_calls><|eot|>",
        calls=TWO,
        prompt="<|start|>assistant",
    ),
    Recorded("generic", f'{{"tool_calls": [{CALL}]}}', calls=(WEATHER,)),
    Recorded(
        "generic",
        f'```json\n{{"tool_calls": {BOTH}}}\n```',
        calls=TWO,
    ),
    Recorded(
        "generic",
        f'<think>Hm.</think>\n{{"tool_call": {CALL_PARIS}}}',
        reasoning="Hm.",
        calls=TWO[:1],
        sign=THINK,
    ),
)
