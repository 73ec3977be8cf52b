"""Recorded outputs of formats whose arguments are text between tags, or Python."""

import re

from tests.unit.formats.samples import _INVOKE, THINK, TWO, WEATHER, Recorded, invoke, whole_turn

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


def dsml(text: str) -> str:
    typed = text.replace('name="city"', 'name="city" string="true"')
    for key in ("days", "exact", "hours", "place"):
        typed = typed.replace(f'name="{key}"', f'name="{key}" string="false"')
    return typed.replace("<", "<｜DSML｜").replace("<｜DSML｜/", "</｜DSML｜")


NS = "]<]minimax[>["

PYTHON = "get_weather(city='Paris', days=3, exact=True, hours=[8, 12], place={'x': 1.5, \"tag\": 'a\"b'})"

OUTPUTS: tuple[Recorded, ...] = (
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
    Recorded("pythonic", f"[{PYTHON}]", calls=(WEATHER,)),
    Recorded("pythonic", "<|python_start|>[get_weather(city=\"Paris\"), get_weather('Rome')]<|python_end|>", calls=TWO),
    Recorded("gemma3", f"I look.\n```tool_code\nprint({PYTHON})\n```", content="I look.", calls=(WEATHER,)),
    Recorded("gemma3", '```tool_code\nget_weather(city="Paris")\nget_weather(city="Rome")\n```', calls=TWO),
    Recorded("gemma3", "[get_weather(city='Paris'), get_weather(city='Rome')]", calls=TWO),
    Recorded("deepseek-dsml", dsml(f"<function_calls>\n{_INVOKE}\n</function_calls>"), calls=(WEATHER,)),
    whole_turn(
        "deepseek-dsml",
        "Hm.</think>I look.\n\n" + dsml(f"<tool_calls>\n{invoke('Paris')}\n{invoke('Rome')}\n</tool_calls>"),
        TWO,
        sign=THINK,
        prompt="<｜Assistant｜><think>",
    ),
    whole_turn("glm", f"<think>Hm.</think>\nI look.\n{_GLM}", (WEATHER,), sign=THINK),
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
    Recorded("minimax-m2", f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>", calls=(WEATHER,)),
    whole_turn(
        "minimax-m2",
        f"Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n{invoke('Paris')}\n{invoke('Rome')}\n</minimax:tool_call>",
        TWO,
        sign=THINK,
        prompt="]~b]ai\n<think>\n",
    ),
    whole_turn(
        "minimax-m3",
        f'<mm:think>Hm.</mm:think>I look.{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Paris{NS}</city>'
        f"{NS}<days>3{NS}</days>{NS}<exact>true{NS}</exact>{NS}<hours>{NS}<item>8{NS}</item>{NS}<item>12{NS}</item>"
        f'{NS}</hours>{NS}<place>{NS}<x>1.5{NS}</x>{NS}<tag>a"b{NS}</tag>{NS}</place>{NS}</invoke>\n{NS}</tool_call>',
        (WEATHER,),
        sign="</mm:think>",
    ),
    Recorded(
        "minimax-m3",
        f'{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Paris{NS}</city>{NS}</invoke>\n'
        f'{NS}<invoke name="get_weather">{NS}<city>Rome{NS}</city>{NS}</invoke>\n{NS}</tool_call>',
        calls=TWO,
    ),
    whole_turn(
        "lfm2", f"<think>Hm.</think>I look.<|tool_call_start|>[{PYTHON}]<|tool_call_end|>", (WEATHER,), sign=THINK
    ),
    Recorded(
        "lfm2", '<|tool_call_start|>[get_weather(city="Paris"), get_weather(city="Rome")]<|tool_call_end|>', calls=TWO
    ),
    whole_turn(
        "minicpm5",
        'Hm.\n</think>\n\nI look.\n<function name="get_weather"><param name="city"><![CDATA[Paris]]></param>'
        '<param name="days">3</param><param name="exact">True</param><param name="hours">[8, 12]</param>'
        "<param name=\"place\">{'x': 1.5, 'tag': 'a\"b'}</param></function>",
        (WEATHER,),
        sign=THINK,
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "minicpm5",
        '<function name="get_weather"><param name="city">Paris</param></function>\n'
        '<function name="get_weather"><param name="city">Rome</param></function>',
        calls=TWO,
    ),
)
