"""Detects what a template can render, by rendering probes.

llama.cpp (common/jinja/caps.cpp) records which values its interpreter reads. Here, short chats are rendered and the
output is searched for their texts, with the same result for every template in llama.cpp's models/templates.
`adaptation` converts what a template can't show.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.formats.parsing.reasoning import TAGS
from server.formats.recognition import TemplateMessage
from server.templates.rendering import RenderFault, RenderStopped

Render = Callable[..., str]

When = Literal["always", "without tools", "never"]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts of OpenAI's and other servers' clients, in ascending order."""

_NEEDLE = "needle7351"
_NAMES_DEVELOPER = re.compile(r"""['"]developer['"]""")
_FOREIGN_ID = "toolu_01AbCdEfGhIjKlMnOpQrStUv"
_ROLES = ("system", "user", "assistant", "tool")
_MARKUP = 40  # characters before a text that are searched for the start of a printed list


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template can show. "Shown" means that the prompt contains every text, in order."""

    system: bool
    developer: bool  # the role is distinguished from ``system``
    string_content: bool
    typed_content: bool  # content may be a list of parts
    tools: bool
    tool_calls: bool
    parallel_tool_calls: bool  # several calls of one message are shown
    object_arguments: bool  # a call's arguments must be an object; their JSON text is quoted or not shown
    thinking: bool  # ``enable_thinking`` changes the prompt, or a message's reasoning is shown
    reasoning_tags: tuple[str, str]  # the markup around reasoning, with white space; "" if the template shows none
    reasoning_with_call_text: bool = True  # a message with calls may have both reasoning and content (not in gpt-oss)
    preserve_reasoning: bool = False  # reasoning of earlier turns can be kept in the prompt
    reasoning_effort: bool = False  # that variable changes the prompt
    efforts: tuple[str, ...] = EFFORTS  # those that the template accepts
    parts: Mapping[str, Literal["all", "first", "none"]] = field(default_factory=dict)  # shown parts of a list, by role
    tool_results: bool = True
    call_ids: Literal["optional", "any", "nine", "named"] = "optional"
    """The form of ids: any or none; any; nine letters and digits (Mistral); with the function's name, which is not
    shown elsewhere (Kimi K2's first template: ``functions.NAME:0``).
    """
    text_with_calls: Literal["always", "latest", "never"] = "always"  # latest: only until an answer follows (gpt-oss)
    results_without_calls: bool = True  # a result without a call is shown
    steady_system: bool = True  # the first system message keeps its position
    system_separator: str = "\n"  # between it and the user's text if the template joins both
    consecutive_systems: bool = True  # several system messages at the start are shown
    late_system: bool = True  # system messages after other messages are shown
    consecutive_roles: bool = True  # consecutive messages of the user or the assistant are accepted
    assistant_first: bool = True  # the chat may start with an answer
    call_first: When = "always"
    without_user: bool = True
    system_alone: When = "always"
    user_after_call: bool = True  # a user message may follow an unanswered call
    call_last: bool = True  # an assistant turn may start after its own call
    empty_answer: bool = True
    filler: str = ""  # the content of messages that are added because the template requires their role


def probe(render: Render, source: str) -> Capabilities:
    """Render probes. A probe that the template rejects is not supported. Raises `RenderStopped`."""
    return _Probe(render, source).capabilities()


class _Probe:
    """Renders short chats with one template. Their texts occur nowhere else."""

    def __init__(self, render: Render, source: str) -> None:
        self._render, self._source = render, source
        self._strings = _NEEDLE in self._try([{"role": "user", "content": _NEEDLE}])
        raw = self._try([{"role": "user", "content": _parts(_NEEDLE)}])
        self._typed = _NEEDLE in raw and not _shows_structure(raw)
        self._objects = True  # until it is detected
        self._user = self._message("user", "hi")

    def capabilities(self) -> Capabilities:
        shows, user = self._shows, self._user
        system = shows("system user") or not self._strings
        developer = _NAMES_DEVELOPER.search(self._source) is not None and shows("developer user")
        objects, texts = self._called({_NEEDLE: "v"}), self._called('{"' + _NEEDLE + '": "v"}')
        self._objects = _NEEDLE in objects and f"'{_NEEDLE}'" not in objects  # not printed as a Python object
        calls = _NEEDLE in objects or _NEEDLE in texts
        histories = ([user], [self._message("system", "s"), user])
        shown_reasoning, in_a_row = self._reasoning(), shows("user user assistant assistant user")
        empty_answer = shows("user empty user" if in_a_row else "user empty")
        efforts = {effort: self._effort(effort) for effort in EFFORTS}
        several = self._shows_two_calls()
        return Capabilities(
            system=system,
            developer=developer,
            string_content=self._strings or not self._typed,
            typed_content=self._typed,
            tools=any(_NEEDLE in self._try(history, tools=[_tool(_NEEDLE)]) for history in histories),
            tool_calls=calls,
            parallel_tool_calls=several,
            object_arguments=self._objects,
            thinking=len({self._try([user], enable_thinking=on) for on in (True, False)}) > 1
            or _NEEDLE in shown_reasoning,
            reasoning_tags=_reasoning_tags_in(shown_reasoning, self._source),
            reasoning_with_call_text=self._accepts_reasoning_with_call_text(),
            preserve_reasoning=self._preserves_reasoning(),
            reasoning_effort=len({efforts[effort] for effort in ("none", "low", "high", "max")}) > 1,
            efforts=tuple(effort for effort in EFFORTS if efforts[effort]) or EFFORTS,
            parts={role: self._n_parts(role) for role in _ROLES} if self._typed else {},
            tool_results=shows("user call result") or shows("user assistant result"),
            call_ids=self._call_ids(several=several) if calls else "optional",
            text_with_calls=self._text_with_calls() if calls else "always",
            results_without_calls=shows("user lost"),
            steady_system=shows("system user assistant user") and (not calls or shows("system user call result")),
            system_separator=self._system_separator(),
            consecutive_systems=shows("system system user") and (not developer or shows("system developer user")),
            late_system=shows("system user assistant system user system")
            and (not calls or shows("system user call result system"))
            and (not developer or shows("system user assistant developer user")),
            consecutive_roles=in_a_row,
            assistant_first=shows("system assistant user" if system else "assistant user"),
            call_first=self._when("call result user") if calls else "always",
            without_user=shows("assistant") or (calls and shows("call result")),
            system_alone=self._when("system"),
            call_last=not calls or shows("user call"),
            user_after_call=not calls or shows("user call user call result user"),
            empty_answer=empty_answer,
            filler="" if empty_answer and shows("nobody assistant user") else "…",
        )

    def _try(self, messages: Sequence[TemplateMessage], **kwargs: Any) -> str:
        try:
            return self._render(messages=messages, add_generation_prompt=True, **kwargs)
        except RenderStopped:
            raise
        except RenderFault:
            return ""

    def _message(self, role: str, text: str) -> TemplateMessage:
        return {"role": role, "content": text if self._strings or not self._typed else _parts(text)}

    def _shows(self, roles: str, *, tools: bool | None = None, in_order: bool = True) -> bool:
        """Return whether a chat of these roles is shown. `tools` None: render tools if there is a result."""
        messages: list[TemplateMessage] = []
        texts: list[str] = []
        for number, role in enumerate(roles.split()):
            text = f"text{number}w"
            if role in ("nobody", "empty"):
                messages.append(self._message("user" if role == "nobody" else "assistant", ""))
                continue
            if role == "both":
                texts.append(f"next{number}w")
            texts.append(text)
            if role in ("call", "both"):
                with_text = self._message("assistant", "" if role == "call" else texts[-2])
                messages.append({**with_text, "tool_calls": [self._call(text, number)]})
            elif role == "lost":
                messages.append({**self._message("tool", text), "tool_call_id": _id(number)})
            elif role == "result":
                messages.append({**self._message("tool", text), "name": "f", "tool_call_id": _id(number - 1)})
            else:
                messages.append(self._message(role, text))
        if tools is None:
            tools = any(message["role"] == "tool" for message in messages)
        given = {"tools": [_tool("f")]} if tools else {}
        shown = self._try(messages, **given)
        return _in_order(shown, texts) if in_order else all(text in shown for text in texts)

    def _call(self, text: str, number: int, name: str = "f") -> TemplateMessage:
        arguments = {"a": text} if self._objects else json.dumps({"a": text})
        return {"id": _id(number), "type": "function", "function": {"name": name, "arguments": arguments}}

    def _n_parts(self, role: str) -> Literal["all", "first", "none"]:
        """Return how many parts of a message with this role are shown."""
        call = {**self._message("assistant", ""), "tool_calls": [self._call("a", 1)]}
        before: dict[str, list[TemplateMessage]] = {"assistant": [self._user], "tool": [self._user, call]}
        after = [] if role in ("user", "tool") else [self._user]
        tools = {"tools": [_tool("f")]} if role == "tool" else {}
        for texts in (("part1w", "part2w"), ("part1w",)):
            message = {"role": role, "content": _parts(*texts), "name": "f", "tool_call_id": _id(1)}
            shown = self._try([*before.get(role, []), message, *after], **tools)
            start, end = shown.find(texts[0]), shown.rfind(texts[-1])
            if _in_order(shown, texts) and not _shows_structure(shown[max(0, start - _MARKUP) : end]):
                return "all" if len(texts) > 1 else "first"
        return "none"

    def _system_separator(self) -> str:
        """Return the white space between a system message and the user's text if the template joins both."""
        shown = self._try([self._message("system", "first1w"), self._message("user", "second2w")])
        between = shown.partition("first1w")[2].partition("second2w")[0]
        return between if between.isspace() else "\n"

    def _call_ids(self, *, several: bool) -> Literal["optional", "any", "nine", "named"]:
        def shown(call_id: str) -> str:
            call = {**self._call("a1w", 1, _NEEDLE), "id": call_id}
            result = {**self._message("tool", "r1w"), "name": "f", "tool_call_id": call_id}
            return self._try([self._user, {**self._message("assistant", ""), "tool_calls": [call]}, result])

        if _in_order(text := shown(_FOREIGN_ID), ("a1w", "r1w")):
            if _NEEDLE not in text and _NEEDLE in shown(f"functions.{_NEEDLE}:0"):
                return "named"
            return "optional" if self._shows_without_ids(several=several) else "any"
        return "nine" if _in_order(shown(_id(1)), ("a1w", "r1w")) else "any"

    def _shows_without_ids(self, *, several: bool) -> bool:
        def call(text: str) -> TemplateMessage:
            return {key: value for key, value in self._call(text, 1).items() if key != "id"}

        texts = ["a1w", "a2w", "r1w", "r2w"] if several else ["a1w", "r1w"]
        chat: list[TemplateMessage] = [self._user]
        for first in (texts, ["a3w", "r3w"]):
            calls = [call(text) for text in first if text.startswith("a")]
            chat.append({**self._message("assistant", ""), "tool_calls": calls})
            chat += ({**self._message("tool", text), "name": "f"} for text in first if text.startswith("r"))
        return _in_order(self._try(chat, tools=[_tool("f")]), [*texts, "a3w", "r3w"])

    def _when(self, roles: str) -> When:
        if self._shows(roles, tools=True):
            return "always"
        return "without tools" if self._shows(roles, tools=False) else "never"

    def _text_with_calls(self) -> Literal["always", "latest", "never"]:
        if self._shows("user both result assistant user", in_order=False):
            return "always"
        return "latest" if self._shows("user both result", in_order=False) else "never"

    def _reasoning(self) -> str:
        message = {"role": "assistant", "content": "content7351", "reasoning_content": _NEEDLE}
        return self._try([self._user, message], enable_thinking=True)

    def _accepts_reasoning_with_call_text(self) -> bool:
        call = {"role": "assistant", "reasoning_content": "t", "thinking": "t", "tool_calls": [self._call("1", 1)]}
        result = {"role": "tool", "content": "r", "name": "f", "tool_call_id": _id(1)}
        without, whole = (self._try([self._user, {**call, "content": text}, result]) for text in ("", "c"))
        return bool(whole) or not without

    def _preserves_reasoning(self) -> bool:
        old = {"role": "assistant", "content": "a", "reasoning_content": _NEEDLE}
        new = {"role": "assistant", "content": "a", "reasoning_content": "r"}
        drop = dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), False)
        chat = [self._user, old, self._user, new, self._user]
        return _NEEDLE in self._try(chat, enable_thinking=True, preserve_thinking=True, **drop)

    def _effort(self, effort: str) -> str:
        return self._try([self._user], enable_thinking=True, reasoning_effort=effort, reasoning_strength=effort)

    def _called(self, arguments: Any) -> str:
        """Return the prompt of a call, in the latest or an earlier turn, if it contains the needle; otherwise ""."""
        call = {"id": _id(1), "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "content": "r", "name": "f", "tool_call_id": _id(1)}
        turn = [self._user, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
        for history in (turn, [*turn, {"role": "assistant", "content": "done"}, self._user]):
            text = self._try(history, tools=[_tool("f")])
            if _NEEDLE in text:
                return text
        return ""

    def _shows_two_calls(self) -> bool:
        calls = [self._call("1", 1), self._call("2", 2, _NEEDLE)]
        results = [{"role": "tool", "content": "r", "name": "f", "tool_call_id": call["id"]} for call in calls]
        return _NEEDLE in self._try([self._user, {"role": "assistant", "content": "", "tool_calls": calls}, *results])


def _tool(name: str) -> dict[str, Any]:
    properties = {"a": {"type": "string", "description": "d"}}
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def _id(number: int) -> str:
    return f"call{number:05}"


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _in_order(shown: str, texts: Sequence[str]) -> bool:
    at = 0
    for text in texts:
        at = shown.find(text, at)
        if at < 0:
            return False
    return True


def _shows_structure(text: str) -> bool:
    """Return whether the text contains a list of parts as printed by Python or JSON."""
    return "'type'" in text or '"type"' in text


def _reasoning_tags_in(shown: str, source: str) -> tuple[str, str]:
    """Return the markup around a message's reasoning; if it is not shown, the tags in the template's source."""
    for opening, closing in TAGS:
        around = rf"({re.escape(opening)}\s*){_NEEDLE}(\s*{re.escape(closing)}\s*)"
        if found := re.search(around, shown):
            return found[1], found[2]
    return next((pair for pair in TAGS if pair[0] in source or pair[1] in source), ("", ""))
