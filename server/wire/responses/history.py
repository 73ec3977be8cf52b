"""What a response continues: items of earlier responses or of a conversation, as the client sent and received them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.wire.common import Json, random_id

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


@dataclass(frozen=True, slots=True)
class History:
    """``items`` come before the input. ``named_by`` is the field of the body that named them, for errors.
    ``referenced``
    maps the ids that the input refers to, to stored items."""

    items: Sequence[Json] = ()
    named_by: str = "previous_response_id"
    referenced: Mapping[str, Json] = field(default_factory=dict)


NO_HISTORY = History()


def references(items: object) -> set[str]:
    """Return the ids of the stored items that an input refers to."""
    if not isinstance(items, list):
        return set()
    found = (item.get("id") for item in items if isinstance(item, dict) and is_reference(item))
    return {item_id for item_id in found if isinstance(item_id, str)}


def is_reference(item: Mapping[str, Any]) -> bool:
    """Return whether an item stands for a stored one: ``{"type": "item_reference", "id": ...}``, the type optional."""
    return item.get("type") == "item_reference" or set(item) == {"id"}


def items_to_store(given: object, history: History = NO_HISTORY) -> list[Json]:
    """Return the items of an input, each with an id: a text is one message, a reference the item that it names."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [_with_id(history.referenced[item["id"]] if is_reference(item) else item) for item in given]  # type: ignore[attr-defined]


def _with_id(item: Json) -> Json:
    kind = item.get("type") or "message"
    if isinstance(item.get("id"), str) and item["id"]:
        return {**item, "type": kind}
    shown = {"id": f"{_PREFIXES.get(kind, 'item')}_{random_id()}", **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": text, "text": item["content"]}]
        if text == "output_text":
            shown["content"][0]["annotations"] = []
    return {"status": "completed", **shown}
