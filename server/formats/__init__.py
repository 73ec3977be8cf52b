"""The formats of tool calls and reasoning, in `families`, grouped by the syntax of arguments.

A format is a generator that parses a turn (`parsing`). Formats share parsers of calls (`calls`), and describe their
syntax in `tool_call_syntax`, from which `grammar` creates grammars and `written` example texts. `parameter_schema`
answers what parsers and grammars need from a function's schema. `recognition` detects a template's format and
creates its `chat_format`.

The order of the formats matters: the first that matches a template is selected. A format whose markup is part of
another one's follows it (`hermes` is the last of those with <tool_call>).
"""

from server.formats.families.json_objects import (
    command_r,
    generic,
    inkling,
    tagged,
    xlam,
)
from server.formats.families.named_json import (
    apertus,
    deepseek,
    functionary31,
    functionary32,
    glm4,
    harmony,
    kimi_k2,
    mcp_tool,
    mistral_args,
    solar,
)
from server.formats.families.notations import (
    braces,
    gemma3,
    python,
)
from server.formats.families.parameters import (
    glm,
    invoked,
    kimi_k3,
    minicpm5,
    minimax_m3,
    muse,
    qwen3_coder,
    solar2,
    step3,
)
from server.formats.tool_format import ToolFormat

GENERIC = generic.FORMAT
FORMATS: tuple[ToolFormat, ...] = (
    muse.FORMAT,
    harmony.FORMAT,
    inkling.FORMAT,
    mcp_tool.FORMAT,
    functionary32.FORMAT,
    kimi_k2.FORMAT,
    kimi_k3.FORMAT,
    command_r.FORMAT,
    tagged.COMMAND_R_PLUS,
    invoked.GIGACHAT_35,
    tagged.GIGACHAT,
    invoked.DEEPSEEK_DSML,
    step3.FORMAT,
    deepseek.FORMAT,
    minimax_m3.FORMAT,
    invoked.DOTS,
    invoked.MINIMAX_M2,
    braces.FUNCTION_GEMMA,
    braces.GEMMA_4,
    solar2.FORMAT,
    solar.FORMAT,
    glm.HUNYUAN,
    glm.LONGCAT,
    glm.K2_HORIZON,
    glm4.FORMAT,
    glm.FORMAT,
    minicpm5.FORMAT,
    qwen3_coder.FORMAT,
    mistral_args.FORMAT,
    tagged.MISTRAL,
    apertus.FORMAT,
    tagged.NEMOTRON,
    tagged.GRANITE_3,
    tagged.PHI4_MINI,
    python.LFM2,
    tagged.INTERNLM,
    tagged.PANGU,
    python.OLMO3,
    tagged.GRANITE_20B,
    tagged.HUNYUAN_A13B,
    tagged.TOOL_CALLS_TAG,
    tagged.ERNIE,
    tagged.HERMES,
    xlam.FORMAT,
    gemma3.FORMAT,
    python.PYTHONIC,
    tagged.LLAMA_3,
    functionary31.FORMAT,
    tagged.FIREFUNCTION,
    GENERIC,
)
BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}


def recognised(source: str, name: str = "auto") -> ToolFormat:
    """The format of that name; for auto the one that a template with that source speaks, or the generic one."""
    return BY_NAME.get(name) or next((tool_format for tool_format in FORMATS if tool_format.speaks(source)), GENERIC)
