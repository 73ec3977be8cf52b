"""Messages to a prompt, by the model's own Jinja2 template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from jinja2 import Template, TemplateError, TemplateSyntaxError

from server.chat.built_in import CHATML, names, source_of
from server.chat.capabilities import Capabilities, probe
from server.chat.formats import recognised
from server.chat.instructions import calls_as_text, with_tools
from server.chat.jinja import FAULTS, TemplateEnvironment, TemplateRaisedError, environment
from server.chat.messages import Message, adapt, text_of
from server.errors import ConfigError, InvalidRequest

Continued = bool | Literal["content", "reasoning_content"]
"""What of the last message the prompt ends with; True: its content, or its thoughts where there is nothing else."""

RESERVED = frozenset(("messages", "tools", "add_generation_prompt"))


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """``generation_prompt`` is the end of ``text`` that opens the assistant's turn; it may open a ``<think>``."""

    text: str
    generation_prompt: str


@dataclass(frozen=True, slots=True)
class _Compiled:
    source: str
    template: Template
    environment: TemplateEnvironment
    capabilities: Capabilities


class ChatTemplate:
    """A compiled template and what it can do. Safe to use from any thread.

    ``source`` "" means ChatML; a built-in template may be given by its name (`built_in`). ``tool_source`` is used for
    requests with tools (GGUF: ``tokenizer.chat_template.tool_use``). ``add_bos``: tokenizing adds the BOS token, so
    the one that a template writes at the start is dropped. ``tool_format``: the name of the format of calls
    (`formats`); auto = as the template shows. Raises `ConfigError` when a template does not compile
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        tool_source: str = "",
        default_kwargs: Mapping[str, Any] | None = None,
        add_bos: bool = True,
        tool_format: str = "auto",
    ) -> None:
        self.tool_format = tool_format
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._dropped = bos_token if add_bos else ""
        self._defaults = dict(default_kwargs or {})
        if source in names():
            source = source_of(source)
        self._main = self._compiled(source or tool_source or source_of(CHATML))
        self._for_tools = self._compiled(tool_source) if tool_source else self._main
        self.source = self._main.source
        self.tool_source = self._for_tools.source

    @property
    def supports_tools(self) -> bool:
        """Whether tools given to the template appear in the prompt."""
        return self._for_tools.capabilities.tools

    @property
    def supports_thinking(self) -> bool:
        """Whether the template knows of thoughts: ``enable_thinking`` or ``reasoning_content`` change its prompt."""
        return self._main.capabilities.thinking

    @property
    def capabilities(self) -> Capabilities:
        """What the template for requests with tools can do; the more expressive one, as llama-server reports."""
        return self._for_tools.capabilities

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: Continued = False,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt. Raises `InvalidRequest` with the template's own words when it refuses the messages.

        ``continue_final_message``: the last message's thoughts and content end the prompt, for the model to go on with
        them. True goes on with the thoughts where there is nothing else (llama.cpp common/chat.cpp and
        common/chat-auto-parser-generator.cpp, common_chat_continuation).
        """
        compiled = self._for_tools if tools else self._main
        messages = self._told(messages, tools, compiled)
        last = messages[-1] if continue_final_message else None
        arguments = self._arguments(enable_thinking, kwargs or {})
        if tools:
            arguments["tools"] = list(tools)
        if last is not None:
            messages = messages[:-1]
        arguments["messages"] = adapt(messages, compiled.capabilities, compiled.source)
        if last is None and not add_generation_prompt:
            return RenderedPrompt(self._checked(compiled, arguments, generation=False), "")
        text = self._checked(compiled, arguments, generation=True)
        n_common = _common(self._checked(compiled, arguments, generation=False), text)
        before, opening = text[:n_common], text[n_common:]
        if last is not None:
            opening = _continued(opening, last, continue_final_message, compiled)
        return RenderedPrompt(before + opening, opening)

    def _told(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], compiled: _Compiled
    ) -> Sequence[Message]:
        """Messages that tell of tools, calls and results, for a template that knows neither tools nor calls."""
        if compiled.capabilities.tools or compiled.capabilities.tool_calls:
            return messages
        form = recognised(compiled.source, self.tool_format)
        if form.write is None:
            if tools:
                raise InvalidRequest("tools: the chat template of this model does not support tools", "tools")
            return messages
        messages = calls_as_text(messages, form)
        return with_tools(messages, tools, form) if tools else messages

    def _arguments(self, enable_thinking: bool, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The template's variables beside messages and tools (llama.cpp common/chat.cpp, common_chat_extra_context;
        common/jinja/caps.cpp, caps_apply_*)."""
        for name in sorted(RESERVED & kwargs.keys()):
            raise InvalidRequest(
                f"chat_template_kwargs.{name}: is set by the request's own fields", f"chat_template_kwargs.{name}"
            )
        now = datetime.now().astimezone()
        arguments: dict[str, Any] = {
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
            **self._defaults,
            "enable_thinking": enable_thinking,
            **kwargs,
        }
        keep = arguments.get("preserve_reasoning")
        if isinstance(keep, bool):
            arguments["preserve_thinking"] = keep
            arguments |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
        effort = arguments.get("reasoning_effort")
        if isinstance(effort, str) and effort:
            arguments["reasoning_strength"] = effort
        return arguments

    def _checked(self, compiled: _Compiled, arguments: Mapping[str, Any], *, generation: bool) -> str:
        given = {**arguments, **self._fixed, "add_generation_prompt": generation}
        try:
            text = compiled.environment.render(compiled.template, given)
        except TemplateRaisedError as error:
            raise InvalidRequest(f"messages: the chat template refused them: {error.message}", "messages") from error
        except FAULTS as error:
            raise InvalidRequest(
                f"messages: the chat template failed on them: {type(error).__name__}: {str(error)[:500]}", "messages"
            ) from error
        return text.removeprefix(self._dropped)

    def _compiled(self, source: str) -> _Compiled:
        jinja = environment(source)
        try:
            template = jinja.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"the chat template does not compile, line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError) as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error

        def render(**arguments: Any) -> str:
            return jinja.render(template, {**self._fixed, **arguments})

        return _Compiled(source, template, jinja, probe(render, source))


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    if other.startswith(one):
        return len(one)
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other))


def _continued(opening: str, message: Message, wanted: Continued, compiled: _Compiled) -> str:
    """The opening of the assistant's turn with a message's parts behind it.

    Thoughts are closed in front of content, empty ones too where the template itself closes thoughts.
    """
    content, thought = text_of(message.get("content")), message.get("reasoning_content") or ""
    thinks = wanted == "reasoning_content" or (wanted is True and bool(thought) and not content)
    start, end = compiled.capabilities.thought_tags
    tag = start.strip()
    if thinks and not tag:
        raise InvalidRequest(
            "continue_final_message: the chat template of this model has no thoughts to go on with",
            "continue_final_message",
        )
    if tag and (thought or thinks or tag in opening or end.strip() in compiled.source):
        opening = opening.partition(tag)[0] + start + thought + ("" if thinks else end)
    return opening if thinks else opening + content
