"""Renders messages to a prompt with the model's Jinja2 template."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

from server.errors import ConfigError, InvalidRequest
from server.formats.chat_format import ChatFormat
from server.formats.recognition import TOOL, TemplateMessage, n_common, recognise
from server.templates.adaptation import PREAMBLE_MARK, adapt, adapted_effort, in_template_form, with_words
from server.templates.built_in import CHATML, format_of, names, source_of
from server.templates.capabilities import Capabilities, probe
from server.templates.continuation import Continued, continues_reasoning, marked, truncate_at_mark, write_message
from server.templates.instructions import calls_as_text, completed, with_tools
from server.templates.rendering import Renderer, RenderFault, RenderRefusal, RenderStopped, TemplateBroken

RESERVED = {
    "messages": "is set by the request's own fields",
    "tools": "is set by the request's own fields",
    "add_generation_prompt": "is set by the request's own fields",
    "bos_token": "is the model's own",
    "eos_token": "is the model's own",
}
"""Variables that ``chat_template_kwargs`` can't set, and why."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt. ``generation_prompt``: the end of ``text`` that starts the assistant's turn, and may open reasoning."""

    text: str
    generation_prompt: str


@dataclass(frozen=True, slots=True)
class _Compiled:
    capabilities: Capabilities
    chat_format: ChatFormat


def _in_process() -> Renderer:
    from server.templates import jinja  # imported on demand: a server with isolated renderers does not need Jinja2

    return jinja


class _FailedError(InvalidRequest):
    """The template's code failed on its arguments."""


class ChatTemplate:
    """A compiled template and its capabilities. Thread-safe.

    ``source`` may be "" for ChatML, or the name of a built-in template (`built_in`). ``tool_source`` is used for
    requests with tools (GGUF: ``tokenizer.chat_template.tool_use``). ``add_bos``: tokenizing adds the BOS token, so the
    template's own one is removed. ``tool_format``: the name of the call format (`formats`); auto: detected.
    ``renderer`` None: render in the calling thread. Raises `ConfigError` if a template does not compile.
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
        renderer: Renderer | None = None,
    ) -> None:
        self._renderer = renderer or _in_process()
        self._tool_format = tool_format
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._dropped = bos_token if add_bos else ""
        self._defaults = dict(default_kwargs or {})
        if source in names():
            self._tool_format = format_of(source) if tool_format == "auto" else tool_format
            source = source_of(source)
        self._main = self._compiled(source or tool_source or source_of(CHATML))
        self._for_tools = self._compiled(tool_source) if tool_source else self._main
        self.source = self._main.chat_format.source

    @property
    def supports_tools(self) -> bool:
        return self._for_tools.capabilities.tools

    @property
    def supports_thinking(self) -> bool:
        """Return whether ``enable_thinking`` or ``reasoning_content`` change the prompt."""
        return self._main.capabilities.thinking

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of the template for requests with tools, as llama-server reports them."""
        return self._for_tools.capabilities

    def chat_format(self, *, tools: bool = True) -> ChatFormat:
        """Return the chat format of the template for requests with or without `tools`."""
        return (self._for_tools if tools else self._main).chat_format

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: Continued = False,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the prompt. Raises `InvalidRequest` with the template's message if it rejects the messages.

        ``continue_final_message``: the last message's content or reasoning ends the prompt (`continuation`). If the
        template fails on tools, they are completed (`instructions.completed`); if it fails again, a message describes
        them.
        """
        compiled = self._for_tools if tools else self._main
        variables = self._arguments(enable_thinking, kwargs or {}, compiled)

        def prompt(messages: Sequence[TemplateMessage], shown: Mapping[str, Any]) -> RenderedPrompt:
            given = {**shown, **variables, "messages": in_template_form(messages, compiled.capabilities)}
            adapted = adapt(
                messages,
                compiled.capabilities,
                tools="tools" in shown,
                opened=add_generation_prompt,
                continued=bool(continue_final_message),
                preamble=compiled.chat_format.after_reasoning,
            )
            if given["messages"] != adapted and self._shows_all(compiled, given, opened=add_generation_prompt):
                with contextlib.suppress(InvalidRequest):
                    return rendered(given)
            return rendered({**given, "messages": adapted})

        def rendered(arguments: dict[str, Any]) -> RenderedPrompt:
            if continue_final_message:
                return self._continued(compiled, arguments, continue_final_message)
            if not add_generation_prompt:
                return RenderedPrompt(self._rendered(compiled, arguments, False)[0], "")
            return self._opened(compiled, arguments)

        shown = _tool_variables(tools)
        messages = self._as_text(messages, tools, compiled)
        try:
            return prompt(messages, shown)
        except _FailedError:
            if not tools:
                raise
        try:
            return prompt(messages, _tool_variables([completed(tool) for tool in tools]))
        except _FailedError:
            return prompt(with_tools(messages, tools, compiled.chat_format.tool_call_syntax), _tool_variables(()))

    def _shows_all(self, compiled: _Compiled, arguments: Mapping[str, Any], *, opened: bool) -> bool:
        """Return whether the template accepts this conversation, shows all its texts, and keeps the position of later
        system messages. Moved to the front, they would change the whole prompt and invalidate its cached prefix.
        """
        short, words, late = with_words(arguments["messages"])
        arguments = {**arguments, "messages": short} | ({"tools": [TOOL]} if "tools" in arguments else {})
        try:
            (text,) = self._rendered(compiled, arguments, opened)
        except InvalidRequest:
            return False
        first = {found[0]: found.start() for found in reversed([*re.finditer(r"word\d+x", text)])}
        positions = [first.get(word, -1) for word in words]  # `find` for each word would take quadratic time
        before, after = [*accumulate(positions, max, initial=0)], [*accumulate(reversed(positions), min)][::-1]
        in_place = (before[at] <= positions[at] <= after[at] for at in late)
        return min(positions, default=0) >= 0 and all(in_place)

    def _opened(self, compiled: _Compiled, arguments: Mapping[str, Any]) -> RenderedPrompt:
        text, closed = self._rendered(compiled, arguments, True, False)
        return RenderedPrompt(text, text[n_common(closed, text) :])

    def _continued(self, compiled: _Compiled, arguments: dict[str, Any], continued: Continued) -> RenderedPrompt:
        *before, last = arguments["messages"]
        in_reasoning = continues_reasoning(last, continued)
        given = {**arguments, "messages": [*before, marked(last, in_reasoning=in_reasoning)]}
        (whole,) = self._rendered(compiled, given, False)
        text = truncate_at_mark(whole, last, in_reasoning=in_reasoning)
        try:
            opened = self._opened(compiled, {**arguments, "messages": before})
        except InvalidRequest:  # some templates reject the chat without that message
            if text is None:
                raise
            return RenderedPrompt(text, text)
        start = len(opened.text) - len(opened.generation_prompt)
        if text is not None:
            return RenderedPrompt(text, text[n_common(opened.text[:start], text) :])
        opening = write_message(opened.generation_prompt, last, continued, compiled.chat_format, compiled.capabilities)
        return RenderedPrompt(opened.text[:start] + opening, opening)

    def _as_text(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], compiled: _Compiled
    ) -> Sequence[TemplateMessage]:
        """Return the messages with tools, calls and results as text if the template can't show them."""
        caps, syntax = compiled.capabilities, compiled.chat_format.tool_call_syntax
        if not caps.tool_calls:
            own_results = caps.tools and caps.tool_results
            messages = calls_as_text(messages, syntax, results=not own_results)
        return with_tools(messages, tools, syntax) if tools and not caps.tools else messages

    def _arguments(self, enable_thinking: bool, kwargs: Mapping[str, Any], compiled: _Compiled) -> dict[str, Any]:
        """Return the template's variables besides messages and tools.

        As in llama.cpp (common/chat.cpp, common_chat_extra_context; common/jinja/caps.cpp, caps_apply_*).
        """
        for name in sorted(RESERVED.keys() & kwargs.keys()):
            raise InvalidRequest(f"chat_template_kwargs.{name}: {RESERVED[name]}", f"chat_template_kwargs.{name}")
        arguments: dict[str, Any] = {
            **_dates(),
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
            effort = adapted_effort(effort, compiled.capabilities)
            arguments |= {"reasoning_effort": effort, "reasoning_strength": effort}
        return arguments

    def _rendered(self, compiled: _Compiled, arguments: Mapping[str, Any], *opened: bool) -> list[str]:
        """Return a prompt for each value of `opened` (``add_generation_prompt``), without a duplicate BOS token and
        with the markup of text before calls. Raises `InvalidRequest` for every failure, because the messages caused it.
        """
        given = ({**arguments, **self._fixed, "add_generation_prompt": each} for each in opened)
        try:
            texts = self._renderer.render(compiled.chat_format.source, *given)
        except RenderRefusal as refusal:
            raise InvalidRequest(f"messages: the chat template refused them: {refusal}", "messages") from refusal
        except RenderStopped as stop:
            raise InvalidRequest(f"messages: the chat template failed on them: {stop}", "messages") from stop
        except RenderFault as fault:
            raise _FailedError(f"messages: the chat template failed on them: {fault}", "messages") from fault
        with_preambles = compiled.chat_format.with_preambles
        return [with_preambles(text.removeprefix(self._dropped), PREAMBLE_MARK) for text in texts]

    def _compiled(self, source: str) -> _Compiled:
        def render(*, tools: Sequence[Mapping[str, Any]] = (), **arguments: Any) -> str:
            given = {**_dates(), **self._fixed, **_tool_variables(tools), **arguments}
            return self._renderer.render(source, given)[0]

        try:
            caps = probe(render, source)

            def prompt(messages: Sequence[TemplateMessage], opened: bool) -> str:
                try:
                    return render(messages=adapt(messages, caps), tools=[TOOL], add_generation_prompt=opened)
                except RenderStopped:
                    raise
                except (RenderFault, InvalidRequest):
                    return ""

            named, tools, calls = self._tool_format, caps.tools, caps.tool_calls
            return _Compiled(caps, recognise(prompt, source, named, shows_tools=tools, shows_calls=calls))
        except TemplateBroken as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        except RenderStopped as error:
            raise ConfigError(f"the chat template can't be used: {error}") from error


def _dates() -> dict[str, str]:
    """Return today's date as in llama.cpp's common/chat.cpp (common_chat_extra_context)."""
    now = datetime.now().astimezone()
    return {"datetime": now.strftime("%b %d %Y"), "date_string": now.strftime("%d %b %Y")}


def _tool_variables(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the variables for tools; Firefunction's template reads ``functions``, as in its model card."""
    try:
        functions = json.dumps([tool.get("function", tool) for tool in tools], indent=4)
    except RecursionError as error:
        raise InvalidRequest("tools: their schemas nest too deeply", "tools") from error
    return {"functions": functions, **({"tools": list(tools)} if tools else {})}
