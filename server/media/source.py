"""The media of a request, the sources of their files, and the loaded files."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
MediaKind = Literal["image", "audio", "video", "file", "document"]


@dataclass(frozen=True, slots=True)
class Media:
    """A content part that is not plain text. It is not fetched or decoded yet.

    ``what``: its type or name. ``source``: the data or the address; None if no model can be shown this part. The
    content of a ``file`` determines the actual media type. A ``document`` may be text; then ``what`` is its name or
    title, and ``context`` is the client's description. ``spare``: the part may be omitted if it can't be loaded.
    """

    kind: MediaKind
    what: str = ""
    at: str = ""
    source: Source | None = field(default=None, repr=False)
    spare: bool = False
    context: str = ""

    @property
    def placeholder(self) -> str:
        """Return the text that replaces this part in the prompt of a model that can't process it."""
        return self._instead("this model takes none")

    @property
    def lost(self) -> str:
        """Return the text that replaces this part if it could not be loaded."""
        return self._instead("it could not be read")

    def _instead(self, reason: str) -> str:
        return f"[{self.kind}{f' {self.what}' if self.what else ''}: not shown, {reason}]"


LoadedMedia: TypeAlias = Mapping[Source, Decoded]
"""The files of a request that its model can be shown, decoded."""
NO_MEDIA: LoadedMedia = {}
