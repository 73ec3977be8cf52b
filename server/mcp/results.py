"""The results of listing and calling MCP tools, independent of the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from server.media.source import Media

Json = dict[str, Any]


FaultKind = Literal["http", "protocol", "execution"]


class McpFault(Exception):
    """A failed list or call.

    ``kind``: the layer that failed: transport (``http``), protocol (``protocol``) or tool (``execution``). ``code``:
    the HTTP or JSON-RPC code, 0 for none.
    """

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
        """Return whether the server declares the tool as read-only."""
        return (self.annotations or {}).get("readOnlyHint") is True


@dataclass(frozen=True, slots=True)
class McpResult:
    """A tool's result. ``is_error``: the tool reports a failure. ``what`` of an image is its media type.

    ``fault``: why there is no result.
    """

    text: str = ""
    images: tuple[Media, ...] = ()
    is_error: bool = False
    fault: McpFault | None = None

    @property
    def failed(self) -> bool:
        """Return whether there is no result, or the tool reports a failure."""
        return self.fault is not None or self.is_error

    @property
    def shown(self) -> str:
        """Return the result as text, for clients."""
        if self.fault is not None:
            return f"Error: {self.fault.message}"
        return "\n".join(filter(None, [self.text, *(f"[image {image.what}]" for image in self.images)]))
