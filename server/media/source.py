"""Where the files of a request are, and what became of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from server.media.bitmap import Bitmap


@dataclass(frozen=True, slots=True)
class Link:
    """Where a file is: an ``http``, ``https`` or ``file`` address, as the client wrote it."""

    url: str


Source: TypeAlias = bytes | Link
"""Where the files of a request are, and what became of them."""


Seen: TypeAlias = Mapping[Source, Bitmap]
"""Where the files of a request are, and what became of them."""
