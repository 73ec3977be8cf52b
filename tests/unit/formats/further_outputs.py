"""Recorded outputs of formats that the parsers of vLLM and SGLang know, and no template of llama.cpp's own."""

from tests.unit.formats.samples import FULL, PARIS, ROME, THINK, TWO, WEATHER, Recorded, call, invoke, whole_turn

BOTH = f"[{call(PARIS)}, {call(ROME)}]"
BRACES = '{city:<escape>Paris<escape>,days:3,exact:true,hours:[8,12],place:{x:1.5,tag:<escape>a"b<escape>}}'
PYTHON = "get_weather(city='Paris', days=3, exact=True, hours=[8, 12], place={'x': 1.5, 'tag': 'a\"b'})"
VALUES = (
    ("city", "Paris"),
    ("days", "3"),
    ("exact", "true"),
    ("hours", "[8, 12]"),
    ("place", '{"x": 1.5, "tag": "a\\"b"}'),
)


def function_gemma(city: str) -> str:
    return f"<start_function_call>call:get_weather{{city:<escape>{city}<escape>}}<end_function_call>"


def keys(prefix: str, values: tuple[tuple[str, str], ...], kind: str = "") -> str:
    """GLM's keys and values."""
    typed = f"<{prefix}arg_type>{kind}</{prefix}arg_type>\n" if kind else ""
    shown = "".join(
        f"<{prefix}arg_key>{key}</{prefix}arg_key>\n{typed}<{prefix}arg_value>{value}</{prefix}arg_value>\n"
        for key, value in values
    )
    return f"<{prefix}tool_call>get_weather\n{shown}</{prefix}tool_call>"


def step(values: tuple[tuple[str, str], ...]) -> str:
    inside = "".join(f'<steptml:parameter name="{key}">{value}</steptml:parameter>\n' for key, value in values)
    call = f'<steptml:invoke name="get_weather">\n{inside}</steptml:invoke>'
    return f"<｜tool_call_begin｜>function<｜tool_sep｜>{call}<｜tool_call_end｜>"


def solar(values: tuple[tuple[str, str], ...]) -> str:
    inside = "".join(f"<|tool_arg:start|>{key}<|tool_arg:value|>{value}<|tool_arg:end|>\n" for key, value in values)
    return f"<|tool_call:start|>get_weather\n{inside}<|tool_call:end|>"


def longcat(arguments: str) -> str:
    return f"<longcat_tool_call>\n{call(arguments)}\n</longcat_tool_call>"


def internlm(arguments: str, space: str = "") -> str:
    return f"<|action_start|>{space}<|plugin|>\n{call(arguments, key='parameters')}<|action_end|>"


GCML = "｜GCML｜"
INVOKED = "".join(
    f'<{GCML}parameter name="{key}" string="{str(key == "city").lower()}">{value}</{GCML}parameter>\n'
    for key, value in VALUES
)


def inkling(arguments: str) -> str:
    return f'get_weather<|content_invoke_tool_json|>{{"name":"get_weather","args":{arguments}}}<|end_message|>'


def miro(arguments: str) -> str:
    named = "<server_name>generic-extras</server_name>\n<tool_name>get_weather</tool_name>"
    return f"{named}\n<arguments>\n{arguments}\n</arguments>"


SPACED = "｜DSML｜ "
OUTPUTS: tuple[Recorded, ...] = (
    Recorded("glm", f"<tool_call>get_weather>{FULL}</tool_call>", calls=(WEATHER,)),
    whole_turn(
        "inkling",
        "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>I look.<|end_message|><|message_model|>"
        f"{inkling(FULL)}<|content_model_end_sampling|>",
        (WEATHER,),
        prompt="<|message_model|>",
    ),
    Recorded("inkling", f"{inkling(PARIS)}<|message_model|>{inkling(ROME)}", calls=TWO, prompt="<|message_model|>"),
    Recorded(
        "mcp-tool", f"I look.\n<use_mcp_tool>\n{miro(FULL)}\n</use_mcp_tool>", content="I look.", calls=(WEATHER,)
    ),
    Recorded("mcp-tool", f"<use_mcp_tool>\n{miro(PARIS)}\n{miro(ROME)}\n</use_mcp_tool>", calls=TWO),
    Recorded(
        "deepseek-dsml",
        f"<{SPACED}calls>\n{invoke('Paris', SPACED)}\n{invoke('Rome', SPACED)}\n</{SPACED}calls>",
        calls=TWO,
    ),
    Recorded(
        "harmony",
        "<|channel|> analysis<|message|> Hm.<|end|><|start|> assistant to=functions.get_weather<|channel|> commentary"
        f" json<|message|> {PARIS}<|end|>"
        f"<|start|> assistant<|channel|> commentary to=functions.get_weather<|message|> {ROME}",
        reasoning="Hm.",
        calls=TWO,
        prompt="<|start|>assistant",
    ),
    Recorded(
        "function-gemma",
        f"<start_function_call>call:get_weather{BRACES}<end_function_call><start_function_response>",
        calls=(WEATHER,),
    ),
    Recorded(
        "function-gemma", f"I look.{function_gemma('Paris')}{function_gemma('Rome')}", content="I look.", calls=TWO
    ),
    Recorded("olmo3", f"<function_calls>{PYTHON}</function_calls>", calls=(WEATHER,)),
    whole_turn(
        "olmo3",
        '<think>Hm.</think>I look.<function_calls>\nget_weather(city="Paris")\nget_weather(city="Rome")\n'
        "</function_calls>",
        TWO,
        sign=THINK,
    ),
    Recorded("xlam", f"[{call(FULL)}]", calls=(WEATHER,)),
    Recorded("xlam", f"```json\n{BOTH}\n```", calls=TWO),
    Recorded("xlam", '["Paris", "Rome"]', content='["Paris", "Rome"]'),
    Recorded("internlm", internlm(FULL), calls=(WEATHER,)),
    whole_turn("internlm", f"<think>Hm.</think>I look.{internlm(PARIS, ' ')}\n{internlm(ROME, ' ')}", TWO, sign=THINK),
    Recorded("glm4", f"\nget_weather\n{FULL}<|observation|>", calls=(WEATHER,)),
    Recorded("glm4", f"get_weather\n{PARIS}\n<|assistant|>get_weather\n{ROME}<|observation|>", calls=TWO),
    Recorded("glm4", "get_weather gives the weather\nof Paris.", content="get_weather gives the weather\nof Paris."),
    Recorded("longcat", longcat(FULL), calls=(WEATHER,)),
    whole_turn(
        "longcat",
        "<longcat_think>Hm.</longcat_think>I look."
        + keys("longcat_", (("city", "Paris"),))
        + "\n"
        + keys("longcat_", (("city", "Rome"),)),
        TWO,
        sign="</longcat_think>",
    ),
    Recorded("k2-horizon", f"<ifm|tool_calls>\n{keys('ifm|', VALUES)}\n</ifm|tool_calls>", calls=(WEATHER,)),
    Recorded(
        "k2-horizon",
        "<ifm|think>Hm.</ifm|think>"
        + keys("ifm|", (("city", "Paris"),), "string")
        + keys("ifm|", (("city", "Rome"),), "string"),
        reasoning="Hm.",
        calls=TWO,
        sign="</ifm|think>",
    ),
    Recorded(
        "step3", f"I look.<｜tool_calls_begin｜>{step(VALUES)}<｜tool_calls_end｜>", content="I look.", calls=(WEATHER,)
    ),
    Recorded(
        "step3",
        f"<｜tool_calls_begin｜>\n{step((('city', 'Paris'),))}\n{step((('city', 'Rome'),))}\n<｜tool_calls_end｜>",
        calls=TWO,
    ),
    Recorded(
        "gigachat-3.5",
        f'<{GCML}tool_calls>\n<{GCML}invoke name="get_weather">\n{INVOKED}</{GCML}invoke>\n</{GCML}tool_calls>',
        calls=(WEATHER,),
    ),
    Recorded(
        "gigachat-3.5",
        f"<{GCML}tool_calls>\n{invoke('Paris', GCML)}\n{invoke('Rome', GCML)}\n</{GCML}tool_calls>",
        calls=TWO,
    ),
    Recorded("dots", f"<dots_function_call>\n{invoke('Paris')}\n{invoke('Rome')}\n</dots_function_call>", calls=TWO),
    Recorded(
        "dots", f"I look.<dots_function_call>{call(FULL)}</dots_function_call>", content="I look.", calls=(WEATHER,)
    ),
    Recorded("solar2", solar(VALUES), calls=(WEATHER,)),
    Recorded(
        "solar2", f"I look.{solar((('city', 'Paris'),))}\n{solar((('city', 'Rome'),))}", content="I look.", calls=TWO
    ),
    Recorded("granite-20b", f"<function_call> {call(FULL)}", calls=(WEATHER,)),
    Recorded("granite-20b", f"<function_call> {call(PARIS)}\n<function_call> {call(ROME)}", calls=TWO),
    whole_turn(
        "pangu", f"[unused16]Hm.[unused17]I look.[unused11][{call(FULL)}][unused12]", (WEATHER,), sign="[unused17]"
    ),
    Recorded("pangu", f"[unused11]{BOTH}[unused12]", calls=TWO),
    Recorded("hunyuan-a13b", f"<tool_calls>[{call(FULL)}]</tool_calls>", calls=(WEATHER,)),
    whole_turn(
        "hunyuan-a13b",
        f"<think>\nHm.\n</think>\n<answer>\nI look.\n<tool_calls>{BOTH}</tool_calls>\n</answer>",
        TWO,
        sign=THINK,
    ),
    Recorded(
        "hunyuan-a13b",
        "<think>\nEasy.\n</think>\n<answer>\nIt is sunny.\n</answer>",
        content="It is sunny.",
        reasoning="Easy.",
        sign=THINK,
    ),
    Recorded("ernie", f"<tool_call>\n{call(FULL)}\n</tool_call>\n", calls=(WEATHER,)),
    Recorded(
        "ernie",
        "<think>\nEasy.\n</think>\n\n<response>\nIt is sunny.\n</response>\n",
        content="It is sunny.",
        reasoning="Easy.",
        sign=THINK,
    ),
)
