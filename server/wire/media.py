"""Where the pictures and sounds of a body are: what every wire format writes in a way of its own."""

from collections.abc import Mapping
from typing import Any

from server.conversation.conversation import MediaKind
from server.media.source import Link

_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")
_ENDINGS: Mapping[str, MediaKind] = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "bmp", "webp", "avif", "heic", "heif"), "image"),
    **dict.fromkeys(("wav", "mp3", "flac"), "audio"),
    **dict.fromkeys(("mp4", "mov", "m4v", "webm", "mkv", "avi"), "video"),
}


def link(given: object, *keys: str) -> Link | None:
    """The address, or the file in base64: a text, or an object that has it under one of `keys`; None for nothing that
    can be read."""
    if isinstance(given, dict):
        given = next((given[key] for key in keys if isinstance(given.get(key), str) and given[key]), None)
    return Link(given) if isinstance(given, str) and given else None


def kind_of_type(media_type: object) -> MediaKind:
    """Of ``image/png`` it is image; of what is no medium, file."""
    first = media_type.partition("/")[0] if isinstance(media_type, str) else ""
    return next((kind for kind in _KINDS if kind == first), "file")


def file_of(given: Mapping[str, Any]) -> tuple[MediaKind, Link | None]:
    """Of a file that OpenAI's formats have in ``file_data`` or at ``file_url``: what it is by its type or its name, and
    where; None for one that is neither a picture nor a sound nor a video."""
    data, url, name = given.get("file_data"), given.get("file_url"), given.get("filename")
    if isinstance(data, str) and data.startswith("data:"):
        kind = kind_of_type(data[len("data:") :].partition(";")[0])
    else:
        shown = name if isinstance(name, str) and name else url if isinstance(url, str) else ""
        kind = _ENDINGS.get(shown.partition("?")[0].rpartition(".")[2].lower(), "file")
    return kind, None if kind == "file" else link(dict(given), "file_data", "file_url")
