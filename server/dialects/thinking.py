"""Reasoning settings of a chat: whether to reason, and the token budget.

The fields are llama-server's (``reasoning_budget_tokens``, ``thinking_budget_tokens``,
``reasoning_budget_message``), vLLM's (``thinking_token_budget``), Qwen's (``thinking_budget``), and the ``thinking``
object of Anthropic, which DeepSeek, GLM and Kimi accept in chats. -1 means the model's options, as in llama-server
(tools/server/server-common.cpp, oaicompat_chat_params_parse).
"""

from typing import Any, Literal

from server.chat.conversation import ReasoningSettings
from server.dialects.common import Json
from server.dialects.fields import Body, CountOrAll, wrong_type
from server.dialects.generation import GenerationFields, Limit

_SWITCH = "enable_thinking"
UNSAID_BUDGET = 10_000
"""llama-server's, for ``thinking: {"type": "enabled"}`` without budget_tokens in a message of Anthropic's."""


class ReasoningOption(Body):
    """``thinking``."""

    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: CountOrAll | None = None
    display: str | None = None

    @property
    def wanted(self) -> bool | None:
        """Whether the model is to think; None where that is the template's own business."""
        if self.type == "disabled" or self.budget_tokens == 0:
            return False
        return None if self.type == "auto" else True


class ReasoningFields(GenerationFields):
    """Reasoning fields of a chat, in addition to the common ones."""

    thinking_token_budget: Limit | None = None
    thinking_budget: Limit | None = None
    thinking: ReasoningOption | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def asked_budget(self) -> int | None:
        """The first that is given; None where none is."""
        names = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget", "thinking_budget")
        found = (getattr(self, name) for name in names)
        given = next((budget for budget in found if budget is not None), None)
        return self.thinking.budget_tokens if given is None and self.thinking is not None else given


def read_thinking(body: ReasoningFields) -> ReasoningSettings:
    """Return the reasoning settings. Raises `InvalidRequest`."""
    asked = None if body.thinking is None else body.thinking.wanted
    return ReasoningSettings(
        wanted=asked_to_think(body.chat_template_kwargs, body.enable_thinking, asked),
        effort=body.reasoning_effort or "",
        budget=body.asked_budget,
        message=body.reasoning_budget_message,
        format=body.reasoning_format,
        switch=bool(body.reasoning_control),
    )


def asked_to_think(kwargs: Json | None, *fields: bool | None) -> bool | None:
    """Return whether to reason, by the first set field or the template's variable. Raises `InvalidRequest`."""
    given = (kwargs or {}).get(_SWITCH)
    if given is not None and not isinstance(given, bool):
        raise wrong_type(f"chat_template_kwargs.{_SWITCH}", "a boolean", given)
    return next((each for each in (*fields, given) if each is not None), None)


def template_kwargs(given: Json | None) -> Json:
    """Return the template's variables, except the one that `asked_to_think` reads."""
    return {name: value for name, value in (given or {}).items() if name != _SWITCH}
