"""Prompts that end within a message of the assistant, for the model to go on with it.

As Hugging Face does it (transformers, utils/chat_template_utils.py, render_jinja_template): the message is rendered
with a mark behind the text to go on with, and the prompt is cut there. Where the template does not show that text, the
message's parts are written behind the opening of a turn instead, as llama-server writes them (llama.cpp
common/chat.cpp and common/chat-auto-parser-generator.cpp, common_chat_continuation).
"""

from typing import Any, Literal

from server.errors import InvalidRequest
from server.formats.chat_format import ChatFormat
from server.formats.recognition import TemplateMessage
from server.templates.adaptation import text_of
from server.templates.capabilities import Capabilities

Continued = bool | Literal["content", "reasoning_content"]
"""What of the last message the prompt ends with; True: its content, or its reasoning where there is nothing else."""

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # the space behind it is lost where the template trims


def continues_reasoning(message: TemplateMessage, wanted: Continued) -> bool:
    """Whether the reasoning are what the prompt ends with."""
    reasoning, content = message.get("reasoning_content"), text_of(message.get("content"))
    return wanted == "reasoning_content" or (wanted is True and bool(reasoning) and not content)


def marked(message: dict[str, Any], *, thinks: bool) -> dict[str, Any]:
    """The message, in the form that the template takes, with the mark behind its content or its reasoning."""
    if thinks:
        reasoning = message.get("reasoning_content", "") + _MARK
        return {**message, "reasoning_content": reasoning, "thinking": reasoning}
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]}
    return {**message, "content": content + _MARK}


def cut(text: str, message: TemplateMessage, *, thinks: bool) -> str | None:
    """The prompt up to the mark; None where the template has left out the mark or what stands in front of it."""
    shown = message.get("reasoning_content", "") if thinks else message["content"]
    last = shown[-1]["text"] if isinstance(shown, list) else shown
    at = text.rfind(_MARK.strip())
    if at < 0 or last.strip() not in text:
        return None
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


def written(
    opening: str, message: TemplateMessage, wanted: Continued, chat_format: ChatFormat, caps: Capabilities
) -> str:
    """The opening of the assistant's turn with the message's parts behind it.

    Reasoning is closed before content, also empty reasoning if the template itself closes it.
    """
    content, reasoning = text_of(message.get("content")), message.get("reasoning_content") or ""
    thinks = continues_reasoning(message, wanted)
    start, end, closes = _around(chat_format, caps)
    tag = start.strip()
    if thinks and not tag:
        raise InvalidRequest(
            "continue_final_message: the chat template of this model has no reasoning to continue",
            "continue_final_message",
        )
    if tag and (reasoning or thinks or tag in opening or closes):
        opening = (
            opening.partition(tag)[0] + start + reasoning + ("" if thinks else end + chat_format.tool_format.again)
        )
    return opening if thinks else opening + chat_format.lead + content


def _around(chat_format: ChatFormat, caps: Capabilities) -> tuple[str, str, bool]:
    """What stands in front of reasoning and behind them, "" for nothing, and whether empty ones are closed."""
    tool_format, source = chat_format.tool_format, chat_format.source
    if tool_format.reasoning_tags is not None:
        return *tool_format.reasoning_tags, False
    if tool_format.leads:
        return (*chat_format.reasoning_tags, True) if chat_format.has_reasoning_tags else ("", "", False)
    start, end = caps.reasoning_tags
    if tool_format.reads_reasoning and start and start == start.rstrip() and f"{start}\\n" in source:
        start += "\n"  # Gemma 4: its template shows reasoning only before calls
    return start, end, bool(end) and end.strip() in source
