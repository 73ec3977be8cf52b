"""Recorded outputs of formats with markup of their own around reasoning and content."""

from tests.unit.formats.samples import _INVOKE, FULL, PARIS, ROME, TWO, WEATHER, Recorded, invoke, whole_turn

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


def cohere(number: int, arguments: str) -> str:
    return f'{{"tool_call_id": "{number}", "tool_name": "get_weather", "parameters": {arguments}}}'


OUTPUTS: tuple[Recorded, ...] = (
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
    whole_turn(
        "gemma4",
        '<|channel>thought\nHm.<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        TWO,
        prompt="<|turn>model\n",
    ),
    whole_turn(
        "kimi-k3",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
        f"{K3_FULL}<|close|>tools<|sep|><|close|>message<|sep|>",
        (WEATHER,),
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
    whole_turn(
        "muse",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant"
        " to=get_weather<|message|><atem:function_calls>\n"
        + _INVOKE.replace("<", "<atem:").replace("<atem:/", "</atem:")
        + "\n</atem:function_calls><|eot|>",
        (WEATHER,),
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
)
