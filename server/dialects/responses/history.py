"""What a response continues: items of earlier responses or of a conversation, as the client sent and received them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.dialects.common import Json, random_id

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "compaction": "cmp",
}
_PART_DEFAULTS: Mapping[object, Json] = {
    "output_text": {"annotations": []},
    "input_image": {"detail": "auto"},
}


@dataclass(frozen=True, slots=True)
class History:
    """``items`` precede the input. ``named_by``: the field of the body that names them, for errors. ``referenced``:
    stored items by the ids that the input refers to.
    """

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
    """Return whether an item refers to a stored one: ``{"type": "item_reference", "id": ...}``, the type optional."""
    return item.get("type") == "item_reference" or set(item) == {"id"}


def items_to_store(given: object, history: History = NO_HISTORY) -> list[Json]:
    """Return the items of an input, each with an id: a text is one message, a reference the item that it names."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [_with_id(history.referenced[item["id"]] if is_reference(item) else item) for item in given]  # type: ignore[attr-defined]


def _with_id(item: Json) -> Json:
    """Return an input item as OpenAI's API lists it: with the fields that a client may omit."""
    kind = item.get("type") or "message"
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        item_id = f"{_PREFIXES.get(kind, 'item')}_{random_id()}"
    listed = {**item, "id": item_id, "type": kind, "status": item.get("status") or "completed"}
    if kind != "message":
        return listed
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if item.get("role") == "assistant" else "input_text", "text": content}]
    if isinstance(content, list):
        listed["content"] = [{**_PART_DEFAULTS.get(part.get("type"), {}), **part} for part in content]
    return listed
