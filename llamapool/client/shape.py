"""The shape that a reply must have; every function raises `UnexpectedReply` where it has another."""

from typing import Any

from llamapool.client.errors import UnexpectedReply


def as_object(reply: Any) -> dict[str, Any]:
    """Return `reply`, which must be a JSON object."""
    if not isinstance(reply, dict):
        raise UnexpectedReply("the reply is not a JSON object", reply)
    return reply


def as_objects(reply: Any) -> list[dict[str, Any]]:
    """Return `reply`, which must be an array of objects."""
    if not isinstance(reply, list) or not all(isinstance(entry, dict) for entry in reply):
        raise UnexpectedReply("the reply is not a JSON array of objects", reply)
    return reply


def required(reply: dict[str, Any], name: str) -> Any:
    """Return a required field of a reply."""
    if reply.get(name) is None:
        raise UnexpectedReply(f"the reply has no {name!r}", reply)
    return reply[name]
