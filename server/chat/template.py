"""Messages to a prompt, by the model's own Jinja2 template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from server.chat.capabilities import Capabilities, probe
from server.chat.defaults import CHATML
from server.chat.jinja import FAULTS, TemplateRaisedError, environment
from server.errors import ConfigError, InvalidRequest

Message = Mapping[str, Any]
MAX_RENDERED_CHARS = 64 << 20
BUILT_IN = {"chatml": CHATML}  # what --chat-template accepts by name


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """``generation_prompt`` is the end of ``text`` that opens the assistant's turn; it may open a ``<think>``."""

    text: str
    generation_prompt: str


class ChatTemplate:
    """A compiled template and what it can do.

    ``source`` "" means ChatML; a built-in template may be given by its name. ``tool_source`` is used for requests
    with tools (GGUF: ``tokenizer.chat_template.tool_use``). Raises `ConfigError` when a template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        tool_source: str = "",
        default_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = BUILT_IN.get(source, source) or CHATML
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._defaults = dict(default_kwargs or {})
        self._main = _compile(self.source)
        self._for_tools = _compile(tool_source) if tool_source else self._main
        self.tool_source = tool_source or self.source
        self._capabilities = probe(self._renderer(self._main))
        self._tool_capabilities = probe(self._renderer(self._for_tools)) if tool_source else self._capabilities

    @property
    def supports_tools(self) -> bool:
        """Whether tools given to the template appear in the prompt."""
        return self._tool_capabilities.tools

    @property
    def supports_thinking(self) -> bool:
        """Whether ``enable_thinking`` changes the prompt."""
        return self._capabilities.thinking

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt. Raises `InvalidRequest` with the template's own words when it refuses the messages.

        ``continue_final_message``: the last message's content ends the prompt, for the model to go on with it.
        """
        template, caps = (self._for_tools, self._tool_capabilities) if tools else (self._main, self._capabilities)
        if tools and not caps.tools:
            raise InvalidRequest("tools: the chat template of this model does not support tools", "tools")
        prefill = ""
        if continue_final_message:
            prefill = _text(messages[-1].get("content"))
            messages, add_generation_prompt = messages[:-1], True
        adapted = _adapt(messages, caps, self.tool_source if tools else self.source)
        arguments = {**self._defaults, "enable_thinking": enable_thinking, **(kwargs or {})}
        if tools:
            arguments["tools"] = list(tools)

        def rendered(*, generation: bool) -> str:
            return self._checked(template, {**arguments, "messages": adapted, "add_generation_prompt": generation})

        text = rendered(generation=add_generation_prompt)
        opening = ""
        if add_generation_prompt:
            closed = rendered(generation=False)
            opening = text[len(closed) :] if text.startswith(closed) else ""
        return RenderedPrompt(text + prefill, opening + prefill)

    def _renderer(self, template: Template) -> Any:
        return lambda **kwargs: template.render({**self._fixed, **kwargs})

    def _checked(self, template: Template, arguments: Mapping[str, Any]) -> str:
        try:
            text = template.render({**arguments, **self._fixed})
        except TemplateRaisedError as error:
            raise InvalidRequest(f"messages: the chat template refused them: {error.message}", "messages") from error
        except FAULTS as error:
            raise InvalidRequest(
                f"messages: the chat template failed on them: {type(error).__name__}: {error}", "messages"
            ) from error
        if len(text) > MAX_RENDERED_CHARS:
            raise InvalidRequest(f"messages: the prompt is longer than {MAX_RENDERED_CHARS} characters", "messages")
        return text


def _compile(source: str) -> Template:
    try:
        return environment().from_string(source)
    except TemplateSyntaxError as error:
        raise ConfigError(f"the chat template does not compile, line {error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"the chat template does not compile: {error}") from error


def _adapt(messages: Sequence[Message], caps: Capabilities, source: str) -> list[dict[str, Any]]:
    """Bring messages into the form that this template takes."""
    adapted: list[dict[str, Any]] = []
    for given in messages:
        message = dict(given)
        if message.get("role") == "developer" and "developer" not in source:
            message["role"] = "system"
        content = message.get("content")
        if caps.typed_content:
            message["content"] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        else:
            message["content"] = _text(content)
        if message.get("tool_calls") and caps.object_arguments:
            message["tool_calls"] = [_with_objects(call) for call in message["tool_calls"]]
        adapted.append(message)
    return adapted if caps.system else _merge_system(adapted)


def _text(content: Any) -> str:
    """Content as one string; text parts are joined by new lines, as llama-server does."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


def _with_objects(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except ValueError as error:
            raise InvalidRequest(
                f"messages: the arguments of the tool call '{function.get('name')}' are not JSON: {error}", "messages"
            ) from error
    return {**call, "function": function}


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Templates without a system role get its text in front of the next user message."""
    merged: list[dict[str, Any]] = []
    pending: list[str] = []
    for message in messages:
        if message.get("role") == "system":
            pending.append(_text(message["content"]))
            continue
        if pending and message.get("role") == "user":
            text = "\n".join([*pending, _text(message["content"])])
            typed = isinstance(message["content"], list)
            message = {**message, "content": [{"type": "text", "text": text}] if typed else text}  # noqa: PLW2901
            pending = []
        merged.append(message)
    if pending:
        merged.append({"role": "user", "content": "\n".join(pending)})
    return merged
