"""Tools as clients of OpenAI's API define them."""

from collections.abc import Mapping
from typing import Any


def tool(
    name: str, properties: Mapping[str, Any], *, function: Mapping[str, Any] | None = None, **schema: Any
) -> dict[str, Any]:
    """Return a tool with required `properties`. `function` and `schema` are further fields of these objects."""
    parameters = {"type": "object", "properties": properties, "required": [*properties], **schema}
    return {"type": "function", "function": {"name": name, **(function or {}), "parameters": parameters}}
