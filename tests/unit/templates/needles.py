"""Chats whose every text is a needle: `unshown` finds the first that a prompt does not show in its place."""

from collections.abc import Iterator, Sequence
from typing import Any

from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.unit.templates.conversations import Chat, Message

Texts = list[str]


class Needles:
    """Texts that occur nowhere else, none of them a part of another."""

    def __init__(self) -> None:
        self._n = 0

    def __call__(self) -> str:
        self._n += 1
        return f"Ndl{self._n:03d}q"


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
