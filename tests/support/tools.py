"""A function as clients of OpenAI's API describe it."""

from collections.abc import Mapping
from typing import Any


def tool(
    name: str, properties: Mapping[str, Any], *, function: Mapping[str, Any] | None = None, **schema: Any
) -> dict[str, Any]:
    """Return a tool whose `properties` are required; `function` and `schema` have further fields of their objects."""
    parameters = {"type": "object", "properties": properties, "required": [*properties], **schema}
    return {"type": "function", "function": {"name": name, **(function or {}), "parameters": parameters}}
