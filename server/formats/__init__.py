"""The formats of tool calls and reasoning.

A format is data (`tool_format`). The syntax of its calls (`tool_call_syntax`) determines their parser, which reads
text in chunks (`parsing`, `calls`), their grammars (`grammar`) and examples (`written`). `parameter_schema` answers
what parsers and grammars need from a function's schema. `recognition` detects a template's format and creates its
`chat_format`.

The order of `FORMATS` matters: the first format that matches a template is used. A format whose markup is a part of
another one's follows it (`HERMES` is the last of those with <tool_call>).
"""

from server.formats.families import json_objects, messages, named_json, nested, parameters, python
from server.formats.tool_format import ToolFormat

GENERIC = json_objects.GENERIC
FORMATS: tuple[ToolFormat, ...] = (
    messages.MUSE,
    messages.HARMONY,
    messages.INKLING,
    named_json.MCP_TOOL,
    named_json.FUNCTIONARY_32,
    named_json.KIMI_K2,
    parameters.KIMI_K3,
    json_objects.COMMAND_R,
    json_objects.COMMAND_R_PLUS,
    parameters.GIGACHAT_35,
    json_objects.GIGACHAT,
    parameters.DEEPSEEK_DSML,
    parameters.STEP3,
    named_json.DEEPSEEK,
    nested.MINIMAX_M3,
    parameters.DOTS,
    parameters.MINIMAX_M2,
    nested.FUNCTION_GEMMA,
    nested.GEMMA_4,
    parameters.SOLAR_2,
    named_json.SOLAR,
    parameters.HUNYUAN,
    parameters.LONGCAT,
    parameters.K2_HORIZON,
    named_json.GLM4,
    parameters.GLM,
    parameters.MINICPM_5,
    parameters.QWEN3_CODER,
    named_json.MISTRAL_ARGS,
    json_objects.MISTRAL,
    named_json.APERTUS,
    json_objects.NEMOTRON,
    json_objects.GRANITE_3,
    json_objects.PHI4_MINI,
    python.LFM2,
    json_objects.INTERNLM,
    json_objects.PANGU,
    python.OLMO3,
    json_objects.GRANITE_20B,
    json_objects.HUNYUAN_A13B,
    json_objects.TOOL_CALLS_TAG,
    json_objects.ERNIE,
    json_objects.HERMES,
    json_objects.XLAM,
    python.GEMMA_3,
    python.PYTHONIC,
    json_objects.LLAMA_3,
    named_json.FUNCTIONARY_31,
    json_objects.FIREFUNCTION,
    GENERIC,
)
BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}


def recognised(source: str, name: str = "auto") -> ToolFormat:
    """Return the format of that name; for auto the first one that matches the template's source, or `GENERIC`."""
    return BY_NAME.get(name) or next((tool_format for tool_format in FORMATS if tool_format.matches(source)), GENERIC)
