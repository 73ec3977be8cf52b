"""The formats of tool calls and thoughts, one file each in `families`, in folders by how calls write their arguments.

A format is a generator over a turn (`parsing`), shares with others how calls are read (`calls`), and describes how they
are written (`call_form`): of that `grammar` makes grammars and `written` texts. `parameter_schema` is what parsers and
grammars ask of a function's schema; `recognition` finds a template's format, and what follows from it is its `speech`.

The order decides: the first that a template speaks is its. Formats whose signs are part of others' signs stand behind
them (`hermes` last of those with <tool_call>).
"""

from server.formats.families.json_objects import (
    command_r,
    command_r_plus,
    ernie,
    firefunction,
    generic,
    gigachat,
    granite3,
    granite20b,
    hermes,
    hunyuan_a13b,
    inkling,
    internlm,
    llama3,
    mistral,
    nemotron,
    pangu,
    phi4_mini,
    tool_calls_tag,
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
    function_gemma,
    gemma3,
    gemma4,
    lfm2,
    olmo3,
    pythonic,
)
from server.formats.families.parameters import (
    deepseek_dsml,
    dots,
    gigachat35,
    glm,
    hunyuan,
    k2_horizon,
    kimi_k3,
    longcat,
    minicpm5,
    minimax_m2,
    minimax_m3,
    muse,
    qwen3_coder,
    solar2,
    step3,
)
from server.formats.form import ToolFormat

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
    command_r_plus.FORMAT,
    gigachat35.FORMAT,
    gigachat.FORMAT,
    deepseek_dsml.FORMAT,
    step3.FORMAT,
    deepseek.FORMAT,
    minimax_m3.FORMAT,
    dots.FORMAT,
    minimax_m2.FORMAT,
    function_gemma.FORMAT,
    gemma4.FORMAT,
    solar2.FORMAT,
    solar.FORMAT,
    hunyuan.FORMAT,
    longcat.FORMAT,
    k2_horizon.FORMAT,
    glm4.FORMAT,
    glm.FORMAT,
    minicpm5.FORMAT,
    qwen3_coder.FORMAT,
    mistral_args.FORMAT,
    mistral.FORMAT,
    apertus.FORMAT,
    nemotron.FORMAT,
    granite3.FORMAT,
    phi4_mini.FORMAT,
    lfm2.FORMAT,
    internlm.FORMAT,
    pangu.FORMAT,
    olmo3.FORMAT,
    granite20b.FORMAT,
    hunyuan_a13b.FORMAT,
    tool_calls_tag.FORMAT,
    ernie.FORMAT,
    hermes.FORMAT,
    xlam.FORMAT,
    gemma3.FORMAT,
    pythonic.FORMAT,
    llama3.FORMAT,
    functionary31.FORMAT,
    firefunction.FORMAT,
    GENERIC,
)
BY_NAME = {form.name: form for form in FORMATS}


def recognised(source: str, name: str = "auto") -> ToolFormat:
    """The format of that name; for auto the one that a template with that source speaks, or the generic one."""
    return BY_NAME.get(name) or next((form for form in FORMATS if form.speaks(source)), GENERIC)
