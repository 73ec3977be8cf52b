"""Where the files of a request are, and what became of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from server.media.bitmap import Decoded


@dataclass(frozen=True, slots=True)
class Link:
    """Where a file is: an ``http``, ``https`` or ``file`` address, as the client wrote it."""

    url: str


Source: TypeAlias = bytes | Link
"""The bytes of a file, or where they are."""
Seen: TypeAlias = Mapping[Source, Decoded]
"""The files of a request that its model can be shown, decoded."""
NOTHING_SEEN: Seen = {}
