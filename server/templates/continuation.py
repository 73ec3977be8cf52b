"""Prompts that end inside an assistant message, for the model to continue it.

As in Hugging Face (transformers, utils/chat_template_utils.py, render_jinja_template), the message is rendered with a
mark after the text to continue, and the prompt is truncated there. If the template does not show that text, the
message's parts are written after the start of a turn, as in llama-server (llama.cpp common/chat.cpp,
common/chat-auto-parser-generator.cpp: common_chat_continuation).
"""

from typing import Any, Literal

from server.errors import InvalidRequest
from server.formats.chat_format import ChatFormat
from server.formats.recognition import TemplateMessage
from server.templates.adaptation import text_of
from server.templates.capabilities import Capabilities

Continued = bool | Literal["content", "reasoning_content"]
"""The part of the last message that ends the prompt; True: its content, or its reasoning if it has no content."""

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # templates that trim texts remove the space


def continues_reasoning(message: TemplateMessage, continued: Continued) -> bool:
    """Return whether the prompt ends with reasoning."""
    reasoning, content = message.get("reasoning_content"), text_of(message.get("content"))
    return continued == "reasoning_content" or (continued is True and bool(reasoning) and not content)


def marked(message: dict[str, Any], *, in_reasoning: bool) -> dict[str, Any]:
    """Return a message in the template's form with the mark after its content or its reasoning."""
    if in_reasoning:
        reasoning = message.get("reasoning_content", "") + _MARK
        return {**message, "reasoning_content": reasoning, "thinking": reasoning}
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]}
    return {**message, "content": content + _MARK}


def truncate_at_mark(text: str, message: TemplateMessage, *, in_reasoning: bool) -> str | None:
    """Return the prompt up to the mark; None if the template omitted the mark or the text before it."""
    shown = message.get("reasoning_content", "") if in_reasoning else message["content"]
    last = shown[-1]["text"] if isinstance(shown, list) else shown
    at = text.rfind(_MARK.strip())
    if at < 0 or last.strip() not in text:
        return None
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


def write_message(
    opening: str, message: TemplateMessage, continued: Continued, chat_format: ChatFormat, caps: Capabilities
) -> str:
    """Return the start of the assistant's turn followed by the message's parts.

    Reasoning is closed before content. Empty reasoning is also closed if the template does so.
    """
    content, reasoning = text_of(message.get("content")), message.get("reasoning_content") or ""
    in_reasoning = continues_reasoning(message, continued)
    start, end, closes = _reasoning_markup(chat_format, caps)
    tag = start.strip()
    if in_reasoning and not tag:
        raise InvalidRequest(
            "continue_final_message: the chat template of this model has no reasoning to continue",
            "continue_final_message",
        )
    if tag and (reasoning or in_reasoning or tag in opening or closes):
        opening = (
            opening.partition(tag)[0]
            + start
            + reasoning
            + ("" if in_reasoning else end + chat_format.tool_format.again)
        )
    return opening if in_reasoning else opening + chat_format.lead + content


def _reasoning_markup(chat_format: ChatFormat, caps: Capabilities) -> tuple[str, str, bool]:
    """Return the markup before and after reasoning ("" for none), and whether empty reasoning is closed."""
    tool_format, source = chat_format.tool_format, chat_format.source
    if tool_format.inline_reasoning is not None and not chat_format.has_reasoning_tags:
        return *tool_format.inline_reasoning, False
    if tool_format.leads:
        return (*chat_format.reasoning_tags, True) if chat_format.has_reasoning_tags else ("", "", False)
    start, end = caps.reasoning_tags
    if tool_format.inline_reasoning and start and start == start.rstrip() and f"{start}\\n" in source:
        start += "\n"  # Gemma 4: its template shows reasoning only before calls
    return start, end, bool(end) and end.strip() in source
