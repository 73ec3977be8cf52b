"""``POST /v1/responses/compact``: replaces a conversation by one opaque item for later requests.

The model summarizes the conversation. The item contains the summary and the user's newest messages, encrypted like
reasoning (`server.dialects.reasoning_cipher`). So clients store it, but cannot change it.
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
"""Maximum characters of the user's newest messages, which an item repeats verbatim."""
_INSTRUCTION = (
    "Summarize this conversation for an assistant that sees only the summary: the user's goals and limits, decisions, "
    "facts, files, results of tools, next steps. Write only the summary."
)
_OPENING = "This is a summary of the conversation until now."
_DROPPED = ("background", "context_management", "conversation", "response_format", "store", "stream", "text")


def compaction_body(given: Mapping[str, Any]) -> Json:
    """Return the body of the request for the summary. Raises `InvalidRequest`."""
    items = given.get("input")
    if items is None and not given.get("previous_response_id"):
        raise invalid("input", "'input' is required")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if isinstance(items, list) or items is None:
        items = [*(items or []), {"role": "user", "content": _INSTRUCTION}]
    fields = {name: value for name, value in given.items() if name not in _DROPPED}
    return {"max_output_tokens": MAX_SUMMARY_TOKENS, **fields, "input": items, "tool_choice": "none", "store": False}


def compacted(response: Any, *, messages: Sequence[Message], cipher: ReasoningCipher) -> Json:
    """Return the reply. `response`: contains the summary of `messages`, the last of which is the instruction."""
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
    """Return the user's newest messages, up to the limit of an item, without earlier summaries."""
    newest: list[str] = []
    left = MAX_KEPT_CHARS
    for message in reversed(messages):
        if message.role != "user" or message.text.startswith(_OPENING):
            continue
        left -= len(message.text)
        if left < 0:
            break
        newest.append(message.text)
    return newest[::-1]


def compacted_text(content: str) -> str:
    """Convert the decrypted content of a compaction item to the text of a message."""
    compaction = orjson.loads(content)
    texts = [f"{_OPENING}\n{compaction['summary']}"]
    if compaction["messages"]:
        texts.append("The user's last messages in it, word by word:")
        texts += [f"<message>\n{each}\n</message>" for each in compaction["messages"]]
    return "\n\n".join(texts)
