"""What lists and calls of MCP tools return, in no package's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]


FaultKind = Literal["http", "protocol", "execution"]


class McpFault(Exception):
    """What a list or a call failed with. ``kind`` says where: on the way (``http``), in the protocol (``protocol``), or
    in the tool itself (``execution``). ``code`` is HTTP's or JSON-RPC's, 0 for none."""

    def __init__(self, message: str, kind: FaultKind = "protocol", code: int = 0) -> None:
        super().__init__(message)
        self.message, self.kind, self.code = message, kind, code


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server, as the server lists it. ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Json | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether the server says that the tool modifies nothing."""
        return (self.annotations or {}).get("readOnlyHint") is True


@dataclass(frozen=True, slots=True)
class McpImage:
    """One image of a result."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class McpResult:
    """What a tool returned. ``is_error``: the tool itself says that it failed."""

    text: str
    images: tuple[McpImage, ...] = ()
    is_error: bool = False
