"""The media of a request, the sources of their files, and the loaded files."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.media.bitmap import Decoded


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """An ``http``, ``https``, ``file`` or ``data`` URL, or plain base64, as the client sent it."""

    url: str
    name: str = ""  # the file's name or media type, if the client specifies it
    low_detail: bool = False  # scale page images down


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
"""The bytes of a file, or their location."""
MediaKind = Literal["image", "audio", "video", "file", "document"]


@dataclass(frozen=True, slots=True)
class Media:
    """A content part that is not plain text, before it is fetched or decoded."""

    kind: MediaKind  # the content of a ``file`` determines the actual one
    what: str = ""  # its type or name; the name or title of a document
    at: str = ""
    source: Source | None = field(default=None, repr=False)  # None if no model supports this part
    optional: bool = False  # it may be omitted if it can't be loaded
    context: str = ""  # the client's description of a document

    @property
    def placeholder(self) -> str:
        """Return the text that replaces this part in the prompt of a model that can't process it."""
        return self._replacement("this model takes none")

    @property
    def lost(self) -> str:
        """Return the text that replaces this part if it could not be loaded."""
        return self._replacement("it could not be read")

    def _replacement(self, reason: str) -> str:
        return f"[{self.kind}{f' {self.what}' if self.what else ''}: not shown, {reason}]"


LoadedMedia: TypeAlias = Mapping[Source, Decoded]
"""The decoded files of a request that its model supports."""
NO_MEDIA: LoadedMedia = {}
