"""Options of chats: templates, reasoning and tool calls."""

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from server.formats import BY_NAME
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, Int, JsonObject, Switch
from server.templates.template import RESERVED


def _variables(value: dict[str, Any]) -> None:
    for name in sorted(RESERVED.keys() & value.keys()):
        raise ValueError(f"can't set {name}: it {RESERVED[name]}")


def _tool_format(value: str) -> None:
    if value != "auto" and value not in BY_NAME:
        raise ValueError(f"should be auto or one of {', '.join(sorted(BY_NAME))}")


class ChatSettings(SettingsModel):
    """Chat templates, reasoning and tool calls."""

    group: ClassVar[str] = "Chat"

    chat_template: str = option("", "--chat-template", env=True, metavar="JINJA|NAME", replaces=("chat_template_file",))
    """Jinja source that replaces the model's template, or the name of a built-in template (docs/templates.md)."""
    chat_template_file: FilePath | None = option(None, "--chat-template-file", env=True, replaces=("chat_template",))
    """File with a Jinja template that replaces the model's."""
    jinja: Bool = option(True, "--jinja", env=True, off=True)
    """Render the template with Jinja. Off = use llama.cpp's built-in equivalent, which supports no tools; a model whose
    template llama.cpp does not recognize then fails to load.
    """
    chat_template_kwargs: JsonObject = option({}, "--chat-template-kwargs", env=True, metavar="JSON", check=_variables)
    """JSON object of additional template variables."""
    reasoning_format: Literal["none", "deepseek", "deepseek-legacy", "auto"] = option(
        "auto", "--reasoning-format", env="LLAMA_ARG_THINK", metavar="FORMAT"
    )
    """Where reasoning is returned: none = in content, deepseek = reasoning_content, deepseek-legacy = both."""
    reasoning: Switch = option("auto", "-rea --reasoning", env=True)
    """Allow reasoning; auto = as the template does."""
    reasoning_effort: str = option("default", "--reasoning-effort", env=True, metavar="LEVEL")
    """Template variable reasoning_effort (minimal, low, medium, high, ...); default = unset."""
    reasoning_budget: Int = option(-1, "--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET", ge=-1, le=2**31 - 1)
    """Most reasoning tokens before reasoning is ended; -1 = unlimited, 0 = no reasoning."""
    reasoning_budget_message: str = option(
        "", "--reasoning-budget-message", env="LLAMA_ARG_THINK_BUDGET_MESSAGE", metavar="MESSAGE", max_length=4096
    )
    """Text inserted before the end-of-reasoning tag when the budget is used up."""
    reasoning_preserve: Bool = option(True, "--reasoning-preserve", env=True, off=True)
    """Template variable preserve_reasoning: keep the reasoning of all previous turns in the prompt."""
    prefill_assistant: Bool = option(True, "--prefill-assistant", env=True, off=True)
    """Continue the last message if it is an assistant message."""
    tool_format: str = option("auto", metavar="NAME", check=_tool_format)
    """Syntax of tool calls and reasoning: a name from docs/tool-formats.md; auto = detected from the template."""
    spm_infill: Bool = option(False, "--spm-infill")
    """Order of /infill prompts: suffix, prefix, middle instead of prefix, suffix, middle."""

    @model_validator(mode="after")
    def _one_template(self) -> "ChatSettings":
        if self.chat_template and self.chat_template_file is not None:
            raise ValueError("chat_template and chat_template_file exclude each other; give one")
        return self
