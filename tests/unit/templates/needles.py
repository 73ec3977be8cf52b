"""Chats of unique texts (needles), to find texts that are missing from a prompt or out of order."""

from collections.abc import Iterator, Sequence
from typing import Any

from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.unit.templates.conversations import Chat, Message

Texts = list[str]


class Needles:
    """Creates unique texts, none of which is a part of another."""

    def __init__(self) -> None:
        self._n = 0

    def __call__(self) -> str:
        self._n += 1
        return f"Ndl{self._n:03d}q"


def _texts(content: Any) -> Texts:
    return [part["text"] for part in content] if isinstance(content, list) else [content] if content else []


def missing_text(messages: Sequence[Message], prompt: str) -> str:
    """Return the first text that does not occur in `prompt` after the preceding texts; "" if none is missing.

    Allowed exceptions: Reasoning may be omitted. The result of each of several calls in one message may directly follow
    its call. A function's name may precede or follow the arguments. The first system message may be anywhere. The
    text of a message with calls may follow them.
    """
    at = 0
    if messages and messages[0]["role"] in ("system", "developer"):
        if missing := [text for text in _texts(messages[0]["content"]) if text not in prompt]:
            return str(missing[0])
        messages = messages[1:]
    for texts, names, results, call_texts in _turns(messages):
        start = at
        if missing := [text for text in call_texts if prompt.find(text, start) < 0]:
            return str(missing[0])
        for text in texts:
            previous_end, at = at, prompt.find(text, at)
            if at < 0:
                return text
            end = prompt.find("Ndl", at + len(text))
            if names.get(text, "") not in prompt[previous_end : end if end >= 0 else len(prompt)]:
                return names[text]
            at += len(text)
        for text in results:
            start = prompt.find(text, start) + len(text)
            if start < len(text):
                return text
        at = max(at, start)
    return ""


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Texts, dict[str, str], Texts, Texts]]:
    """Yield texts in order, functions' names by the argument of their call, results, and texts of calling messages."""
    texts: Texts = []
    results: Texts = []
    call_texts: Texts = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        following = next((each["role"] for each in messages[at:] if each["role"] not in ("system", "developer")), "")
        if following == "tool":  # a result, or a system message between a call and its result
            results += _texts(message["content"])
            continue
        if results:
            yield texts, names, results, call_texts
            texts, names, results, call_texts = [], {}, [], []
        if message.get("tool_calls"):
            call_texts += _texts(message["content"])
        else:
            texts += _texts(message["content"])
        for call in message.get("tool_calls", ()):
            needle = call["function"]["arguments"].split('"')[3]
            names[needle] = call["function"]["name"]
            texts.append(needle)
    yield texts, names, results, call_texts


def render_fault(template: ChatTemplate, chat: Chat) -> str:
    """Return the error of rendering the chat, or the first missing text; "" if the prompt is complete."""
    try:
        prompt = template.render(chat.messages, tools=chat.tools or (), kwargs=chat.kwargs).text
    except InvalidRequest as error:
        return f"400 {error.message}"
    missing = missing_text(chat.messages, prompt)
    return f"missing {missing}" if missing else ""
