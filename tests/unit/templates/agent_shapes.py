"""What agents send (Claude Code 2.1, Codex 0.169, opencode), as chats whose every text is a needle.

`unshown` finds the first text that a prompt does not show in its place.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.unit.templates.conversations import TOOLS, Chat, Message, says

Texts = list[str]


class Needles:
    """Texts that occur nowhere else, none of them a part of another."""

    def __init__(self, first: str = "") -> None:
        self._n = 0
        self._first = first

    def __call__(self) -> str:
        self._n += 1
        return f"{self._first}Ndl{self._n:03d}q"


def _call(call_id: str, needle: str, *, cut: bool = False) -> Message:
    arguments = '{"city": "' + needle + ('", "unit": "C' if cut else '"}')
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def _result(call_id: str, content: Any) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "get_weather"}


def _parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


def shapes() -> dict[str, Chat]:
    """Sixteen of them."""
    n = Needles()
    claude, other = "toolu_01AbCdEfGhIjKlMnOpQrStUv", "toolu_01ZyXwVuTsRqPoNmLkJiHgFe"
    codex = "call_abc123DEF456ghi789JKL0"

    def turn(call_id: str = claude, **more: Any) -> tuple[Message, Message]:
        return says("assistant", "", tool_calls=[_call(call_id, n())], **more), _result(call_id, n())

    def both() -> Message:
        return says("assistant", "", tool_calls=[_call(claude, n()), _call(other, n())])

    return {
        "Claude Code: a system message after the user's": Chat(
            (says("system", _parts(n())), says("user", _parts(n(), n())), says("system", n())), TOOLS
        ),
        "Codex: instructions, two developer messages, two of the user": Chat(
            (says("system", n()), says("developer", n()), says("developer", n()), says("user", n()), says("user", n())),
            TOOLS,
        ),
        "a developer in the middle": Chat(
            (says("system", n()), says("user", n()), says("assistant", n()), says("developer", n()), says("user", n()))
        ),
        "system messages twice": Chat((says("system", n()), says("system", n()), says("user", n()))),
        "the assistant first": Chat((says("assistant", n()), says("user", n()))),
        "arguments that were cut off": Chat(
            (says("user", n()), says("assistant", "", tool_calls=[_call(claude, n(), cut=True)]), _result(claude, n())),
            TOOLS,
        ),
        "two calls and their results": Chat(
            (says("system", n()), says("user", n()), both(), _result(claude, n()), _result(other, n())), TOOLS
        ),
        "foreign ids of calls": Chat(
            (says("user", n()), *turn(codex), *turn(claude), says("assistant", n()), says("user", n())), TOOLS
        ),
        "a result and a text in one message": Chat((says("user", n()), *turn(), says("user", n())), TOOLS),
        "text beside a call": Chat(
            (
                says("user", n()),
                says("assistant", n(), tool_calls=[_call(claude, n())]),
                _result(claude, n()),
                says("assistant", n()),
                says("user", n()),
            ),
            TOOLS,
        ),
        "reasoning in the history": Chat(
            (
                says("user", n()),
                says("assistant", n(), reasoning_content="So.", tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("assistant", n(), reasoning_content="So it is."),
                says("user", n()),
            ),
            TOOLS,
        ),
        "messages of the user in a row": Chat(
            (
                says("user", n()),
                says("user", _parts(n(), n())),
                says("assistant", n()),
                says("user", n()),
                says("user", n()),
            )
        ),
        "the assistant twice in a row": Chat(
            (
                says("user", n()),
                says("assistant", n()),
                says("assistant", n(), tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("user", n()),
            ),
            TOOLS,
        ),
        "an assistant without content": Chat((says("user", n()), says("assistant", ""), says("user", n()))),
        "results in parts, the last one of an image": Chat(
            (
                says("system", n()),
                says("user", n()),
                says("assistant", "", tool_calls=[_call(claude, n())]),
                _result(claude, _parts(n(), f"[image {n()}]")),
            ),
            TOOLS,
        ),
        "a session that was broken off and goes on": Chat(
            (
                says("system", n()),
                says("user", n()),
                says("assistant", n(), tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("assistant", n()),
                says("system", n()),
                says("user", n()),
                *turn(claude),
                *turn(codex),
            ),
            TOOLS,
        ),
    }


def _texts(content: Any) -> Texts:
    return [part["text"] for part in content] if isinstance(content, list) else [content] if content else []


def unshown(messages: Sequence[Message], prompt: str) -> str:
    """The first text that `prompt` does not show after the ones before it; "" when all are there.

    Reasoning may be left out. Where several calls stand in one message, the result of each may follow it at once. A
    function's name may stand before the arguments or after them. A template may write the first system message
    in any place, and the text of a message with calls after these.
    """
    at = 0
    if messages and messages[0]["role"] in ("system", "developer"):
        if lost := [text for text in _texts(messages[0]["content"]) if text not in prompt]:
            return str(lost[0])
        messages = messages[1:]
    for texts, names, results, beside in _turns(messages):
        start = at
        if lost := [text for text in beside if prompt.find(text, start) < 0]:
            return str(lost[0])
        for text in texts:
            begin, at = at, prompt.find(text, at)
            if at < 0:
                return text
            end = prompt.find("Ndl", at + len(text))
            if names.get(text, "") not in prompt[begin : end if end >= 0 else len(prompt)]:
                return names[text]
            at += len(text)
        for text in results:
            start = prompt.find(text, start) + len(text)
            if start < len(text):
                return text
        at = max(at, start)
    return ""


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Texts, dict[str, str], Texts, Texts]]:
    """Texts in order, functions' names by the argument of their call, the results of the calls among the texts, and the
    texts of messages with calls."""
    texts: Texts = []
    results: Texts = []
    beside: Texts = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        following = next((each["role"] for each in messages[at:] if each["role"] not in ("system", "developer")), "")
        if following == "tool":  # a result, or between a call and its result
            results += _texts(message["content"])
            continue
        if results:
            yield texts, names, results, beside
            texts, names, results, beside = [], {}, [], []
        if message.get("tool_calls"):
            beside += _texts(message["content"])
        else:
            texts += _texts(message["content"])
        for call in message.get("tool_calls", ()):
            needle = call["function"]["arguments"].split('"')[3]
            names[needle] = call["function"]["name"]
            texts.append(needle)
    yield texts, names, results, beside


def answer(template: ChatTemplate, chat: Chat) -> str:
    """Why the chat is not answered with all its texts; "" when it is."""
    try:
        prompt = template.render(chat.messages, tools=chat.tools or (), kwargs=chat.kwargs).text
    except InvalidRequest as error:
        return f"400 {error.message}"
    missing = unshown(chat.messages, prompt)
    return f"lost {missing}" if missing else ""
