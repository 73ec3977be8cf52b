"""The source of a file in a request, and the loaded file."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from server.media.bitmap import Decoded


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """Where a file is: an ``http``, ``https``, ``file`` or ``data`` URL, or base64 alone, as the client wrote it.

    ``name``: the file's name or media type, if the client gives one. ``low_detail``: show its pages as small images.
    """

    url: str
    name: str = ""
    low_detail: bool = False


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that the client has uploaded (``/v1/files``)."""

    id: str
    low_detail: bool = False


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a stored file and its name."""

    data: bytes
    name: str


StoredFiles: TypeAlias = Callable[[str], Awaitable[FileContent | None]]
"""Returns a client's stored file by its id; None if the client has no such file."""
Source: TypeAlias = bytes | MediaUrl | StoredFile
"""The bytes of a file, or where they are."""
Seen: TypeAlias = Mapping[Source, Decoded]
"""The files of a request that its model can be shown, decoded."""
NOTHING_SEEN: Seen = {}
