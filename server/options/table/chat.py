"""The models' part of the option table that is about chats: templates, thoughts and tool calls."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from server.formats import BY_NAME
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, Int, JsonObject, Switch
from server.templates.template import RESERVED


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(RESERVED.keys() & value.keys()):
        raise ValueError(f"can't set {name}: it {RESERVED[name]}")
    return value


def _tool_format(value: str) -> str:
    if value != "auto" and value not in BY_NAME:
        raise ValueError(f"should be auto or one of {', '.join(sorted(BY_NAME))}")
    return value


class ChatSettings(SettingsModel):
    """How chat requests are rendered and read."""

    group: ClassVar[str] = "Chat"

    chat_template: Annotated[
        str,
        option(
            "--chat-template",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            metavar="JINJA|NAME",
            replaces=("chat_template_file",),
        ),
    ] = ""
    """Jinja source that replaces the model's own template, or the name of a built-in one (docs/templates.md)."""
    chat_template_file: Annotated[
        FilePath | None,
        option(
            "--chat-template-file",
            env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
            metavar="FILE",
            is_path=True,
            replaces=("chat_template",),
        ),
    ] = None
    """File with the Jinja source that replaces the model's own template."""
    jinja: Annotated[Bool, option("--jinja", env="LLAMA_ARG_JINJA", off=("--no-jinja",))] = True
    """Render the template itself. false = the built-in one that llama.cpp takes it for, which shows no tools; a model
    whose template it does not know can't be loaded then."""
    chat_template_kwargs: Annotated[
        JsonObject,
        option("--chat-template-kwargs", env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS", metavar="JSON"),
        AfterValidator(_variables),
    ] = Field(default_factory=dict)
    """Variables for the template, as a JSON object."""
    reasoning_format: Annotated[
        Literal["none", "deepseek", "deepseek-legacy", "auto"],
        option("--reasoning-format", env="LLAMA_ARG_THINK", metavar="FORMAT"),
    ] = "auto"
    """Where thoughts go: none = into the content, deepseek = reasoning_content, deepseek-legacy = both."""
    reasoning: Annotated[Switch, option("-rea", "--reasoning", env="LLAMA_ARG_REASONING")] = "auto"
    """Whether the model may think; auto = as its template does."""
    reasoning_effort: Annotated[
        str, option("--reasoning-effort", env="LLAMA_ARG_REASONING_EFFORT", metavar="LEVEL")
    ] = "default"
    """The template's variable reasoning_effort (minimal, low, medium, high, ...); default = leave it unset."""
    reasoning_budget: Annotated[
        Int, option("--reasoning-budget", env="LLAMA_ARG_THINK_BUDGET", metavar="N"), Field(ge=-1, le=2**31 - 1)
    ] = -1
    """How many tokens thoughts may have before they are ended; -1 = any number, 0 = no thoughts."""
    reasoning_budget_message: Annotated[
        str,
        option("--reasoning-budget-message", env="LLAMA_ARG_THINK_BUDGET_MESSAGE", metavar="MESSAGE"),
        Field(max_length=4096),
    ] = ""
    """What is written in front of the tag that ends thoughts whose budget is spent."""
    reasoning_preserve: Annotated[
        Bool,
        option("--reasoning-preserve", env="LLAMA_ARG_REASONING_PRESERVE", off=("--no-reasoning-preserve",)),
    ] = True
    """The template's variable preserve_reasoning: keep the thoughts of the whole history."""
    prefill_assistant: Annotated[
        Bool,
        option("--prefill-assistant", env="LLAMA_ARG_PREFILL_ASSISTANT", off=("--no-prefill-assistant",)),
    ] = True
    """Continue the last message when it is the assistant's."""
    tool_format: Annotated[str, option(metavar="NAME"), AfterValidator(_tool_format)] = "auto"
    """How the model writes tool calls and thoughts: a name from docs/tool-formats.md; auto = as its template shows."""
    spm_infill: Annotated[Bool, option("--spm-infill")] = False
    """Fill in the middle (/infill) as suffix, prefix, middle instead of prefix, suffix, middle."""

    @model_validator(mode="after")
    def _one_template(self) -> "ChatSettings":
        if self.chat_template and self.chat_template_file is not None:
            raise ValueError("chat_template and chat_template_file exclude each other; give one")
        return self
