"""``POST /v1/responses/compact``: a conversation as one opaque item that replaces it in later requests.

The model summarizes the conversation. The item holds the summary and the newest messages of the user, encrypted as
reasoning is (`server.dialects.reasoning_cipher`). A client can keep it for as long as it likes and cannot change it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from server.chat.conversation import Message
from server.dialects.common import Json, random_id
from server.dialects.reasoning_cipher import COMPACTION, ReasoningCipher
from server.errors import invalid

MAX_SUMMARY_TOKENS = 2048
MAX_KEPT_CHARS = 16_000
"""Characters of the user's newest messages that an item repeats word by word."""
_INSTRUCTION = (
    "Summarize this conversation for an assistant that sees only the summary: the user's goals and limits, decisions, "
    "facts, files, results of tools, next steps. Write only the summary."
)
_OPENING = "This is a summary of the conversation until now."
_DROPPED = ("background", "context_management", "conversation", "response_format", "store", "stream", "text")


def compaction_body(given: Mapping[str, Any]) -> Json:
    """Return the body of the response that writes the summary. Raises `InvalidRequest`."""
    items = given.get("input")
    if items is None and not given.get("previous_response_id"):
        raise invalid("input", "'input' is required")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if isinstance(items, list) or items is None:
        items = [*(items or []), {"role": "user", "content": _INSTRUCTION}]
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    return {"max_output_tokens": MAX_SUMMARY_TOKENS, **kept, "input": items, "tool_choice": "none", "store": False}


def compacted(response: Any, *, messages: Sequence[Message], cipher: ReasoningCipher) -> Json:
    """Return the reply, from the `response` with the summary of `messages`, of which the last asks for it."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    summary = "".join(part["text"] for part in parts if part["type"] == "output_text").strip()
    content = orjson.dumps({"summary": summary, "messages": _newest(messages[:-1])}).decode()
    item = {
        "id": f"cmp_{random_id()}",
        "type": "compaction",
        "encrypted_content": cipher.encrypt(content, COMPACTION),
    }
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [item],
        "usage": response["usage"],
    }


def _newest(messages: Sequence[Message]) -> list[str]:
    """Return the user's newest messages, as many as an item may repeat, without earlier summaries."""
    kept: list[str] = []
    left = MAX_KEPT_CHARS
    for message in reversed(messages):
        if message.role != "user" or message.text.startswith(_OPENING):
            continue
        left -= len(message.text)
        if left < 0:
            break
        kept.append(message.text)
    return kept[::-1]


def compacted_text(content: str) -> str:
    """Return the decrypted content of a compaction item as the message that the model is shown."""
    found = orjson.loads(content)
    words = [f"{_OPENING}\n{found['summary']}"]
    if found["messages"]:
        words.append("The user's last messages in it, word by word:")
        words += [f"<message>\n{each}\n</message>" for each in found["messages"]]
    return "\n\n".join(words)
