"""The models' part of the option table that is about chats: templates, thoughts and tool calls."""

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
    """How chat requests are rendered and read."""

    group: ClassVar[str] = "Chat"

    chat_template: str = option("", "--chat-template", env=True, metavar="JINJA|NAME", replaces=("chat_template_file",))
    """Jinja source that replaces the model's own template, or the name of a built-in one (docs/templates.md)."""
    chat_template_file: FilePath | None = option(None, "--chat-template-file", env=True, replaces=("chat_template",))
    """File with the Jinja source that replaces the model's own template."""
    jinja: Bool = option(True, "--jinja", env=True, off=True)
    """Render the template itself. false = the built-in one that llama.cpp takes it for, which shows no tools; a model
    whose template it does not know can't be loaded then."""
    chat_template_kwargs: JsonObject = option({}, "--chat-template-kwargs", env=True, metavar="JSON", check=_variables)
    """Variables for the template, as a JSON object."""
    reasoning_format: Literal["none", "deepseek", "deepseek-legacy", "auto"] = option(
        "auto", "--reasoning-format", env="LLAMA_ARG_THINK", metavar="FORMAT"
    )
    """Where thoughts go: none = into the content, deepseek = reasoning_content, deepseek-legacy = both."""
    reasoning: Switch = option("auto", "-rea --reasoning", env=True)
    """Whether the model may think; auto = as its template does."""
    reasoning_effort: str = option("default", "--reasoning-effort", env=True, metavar="LEVEL")
    """The template's variable reasoning_effort (minimal, low, medium, high, ...); default = leave it unset."""
    reasoning_budget: Int = option(-1, "--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET", ge=-1, le=2**31 - 1)
    """How many tokens thoughts may have before they are ended; -1 = any number, 0 = no thoughts."""
    reasoning_budget_message: str = option(
        "", "--reasoning-budget-message", env="LLAMA_ARG_THINK_BUDGET_MESSAGE", metavar="MESSAGE", max_length=4096
    )
    """What is written in front of the tag that ends thoughts whose budget is spent."""
    reasoning_preserve: Bool = option(True, "--reasoning-preserve", env=True, off=True)
    """The template's variable preserve_reasoning: keep the thoughts of the whole history."""
    prefill_assistant: Bool = option(True, "--prefill-assistant", env=True, off=True)
    """Continue the last message when it is the assistant's."""
    tool_format: str = option("auto", metavar="NAME", check=_tool_format)
    """How the model writes tool calls and thoughts: a name from docs/tool-formats.md; auto = as its template shows."""
    spm_infill: Bool = option(False, "--spm-infill")
    """Fill in the middle (/infill) as suffix, prefix, middle instead of prefix, suffix, middle."""

    @model_validator(mode="after")
    def _one_template(self) -> "ChatSettings":
        if self.chat_template and self.chat_template_file is not None:
            raise ValueError("chat_template and chat_template_file exclude each other; give one")
        return self
