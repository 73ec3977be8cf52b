"""Recorded outputs of formats whose arguments are JSON."""

from tests.unit.formats.samples import FULL, PARIS, ROME, THINK, TWO, WEATHER, Recorded, call, whole_turn

CALL, CALL_PARIS, CALL_ROME = call(FULL), call(PARIS), call(ROME)

BOTH = f"[{CALL_PARIS}, {CALL_ROME}]"


def hermes(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ID = ', "id": "a1b2c3d4e"'

OUTPUTS: tuple[Recorded, ...] = (
    Recorded("hermes", hermes(FULL), calls=(WEATHER,)),
    Recorded(
        "hermes",
        f"<think>\nThe user asks.\n</think>\n\nLet me see.\n{hermes(PARIS)}\n{hermes(ROME)}",
        content="Let me see.",
        reasoning="The user asks.",
        calls=TWO,
        sign=THINK,
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
    Recorded("mistral", f"[TOOL_CALLS][{call(FULL, more=ID)}]", calls=(WEATHER,)),
    Recorded("mistral", f'[TOOL_CALLS] [{CALL_PARIS}, {{"arguments": {ROME}, "name": "get_weather"}}]', calls=TWO),
    whole_turn(
        "mistral-args",
        f"[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_weather[ARGS]{ROME}",
        TWO,
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
    whole_turn(
        "kimi-k2",
        "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1"
        f"<|tool_call_argument_begin|>{ROME}<|tool_call_end|><|tool_calls_section_end|>",
        TWO,
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
    Recorded("granite3", f"<tool_call>{BOTH}", calls=TWO),
    Recorded(
        "granite3",
        "<think>Easy.</think>\n\n<response>It is sunny.</response>",
        content="It is sunny.",
        reasoning="Easy.",
        sign=THINK,
    ),
    Recorded(
        "nemotron",
        f"Hm.\n</think>\n<TOOLCALL>[{CALL}]</TOOLCALL>\n",
        reasoning="Hm.",
        calls=(WEATHER,),
        sign=THINK,
        prompt="<SPECIAL_11>Assistant\n<think>\n",
    ),
    Recorded("nemotron", f"<TOOLCALL>{BOTH}</TOOLCALL>", calls=TWO),
    Recorded("phi4-mini", f"<|tool_call|>[{CALL}]<|/tool_call|>", calls=(WEATHER,)),
    Recorded("phi4-mini", f"functools{BOTH}", calls=TWO),
    Recorded("firefunction", f" functools[{CALL}]", calls=(WEATHER,)),
    Recorded("firefunction", f"functools{BOTH}", calls=TWO),
    Recorded(
        "tool-calls-tag",
        f"The weather.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{call(FULL, more=ID)}]</tool_calls>",
        reasoning="The weather.",
        calls=(WEATHER,),
        sign="[BEGIN FINAL RESPONSE]",
        prompt="<|begin_assistant|>\nHere are my reasoning steps:\n",
    ),
    Recorded("tool-calls-tag", f"<tool_calls>\n{CALL_PARIS}\n{CALL_ROME}\n</tool_calls>", calls=TWO),
    Recorded(
        "gigachat", f"I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}", content="I look.", calls=(WEATHER,)
    ),
    Recorded("gigachat", f"<|function_call|>{CALL_PARIS}", calls=TWO[:1]),
    whole_turn(
        "apertus",
        f'<|inner_prefix|>Hm.<|inner_suffix|>I look.<|tools_prefix|>[{{"get_weather": {FULL}}}]<|tools_suffix|>',
        (WEATHER,),
        prompt="<|assistant_start|>",
    ),
    Recorded(
        "apertus", f'<|tools_prefix|>[{{"get_weather": {PARIS}}}, {{"get_weather": {ROME}}}]<|tools_suffix|>', calls=TWO
    ),
    Recorded("generic", f'{{"tool_calls": [{CALL}]}}', calls=(WEATHER,)),
    Recorded("generic", f'```json\n{{"tool_calls": {BOTH}}}\n```', calls=TWO),
    Recorded(
        "generic", f'<think>Hm.</think>\n{{"tool_call": {CALL_PARIS}}}', reasoning="Hm.", calls=TWO[:1], sign=THINK
    ),
)
