"""The images, audio, videos and documents of a body, which each API represents differently."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from server.chat.conversation import Media, MediaKind
from server.media.source import MediaUrl, Source, StoredFile

_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")
_ENDINGS: Mapping[str, MediaKind] = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "bmp", "webp", "avif", "heic", "heif"), "image"),
    **dict.fromkeys(("wav", "mp3", "flac"), "audio"),
    **dict.fromkeys(("mp4", "mov", "m4v", "webm", "mkv", "avi"), "video"),
}


def link(given: object, *keys: str) -> MediaUrl | None:
    """The address, or the file in base64: a text, or an object that has it under one of `keys`; None for nothing that
    can be read."""
    if isinstance(given, dict):
        given = next((given[key] for key in keys if isinstance(given.get(key), str) and given[key]), None)
    return MediaUrl(given) if isinstance(given, str) and given else None


def image_source(given: Mapping[str, Any], *keys: str) -> Source | None:
    """Return where an image of OpenAI's formats is: ``file_id``, or an object or a text under ``image_url``."""
    file_id = given.get("file_id")
    found = link(given.get("image_url"), *keys)
    return StoredFile(file_id) if found is None and isinstance(file_id, str) and file_id else found


def kind_of_type(media_type: object) -> MediaKind:
    """Return ``image`` for ``image/png``, and ``document`` for all types other than image, audio and video."""
    first = media_type.partition("/")[0] if isinstance(media_type, str) else ""
    return next((kind for kind in _KINDS if kind == first), "document")


def file_of(given: Mapping[str, Any], path: str) -> Media:
    """Return a file of OpenAI's formats: ``file_data``, ``file_url``, or an uploaded ``file_id``.

    Its type or its name determines the kind, else its content.
    """
    name = given["filename"] if isinstance(given.get("filename"), str) else ""
    low_detail = given.get("detail") == "low"
    for field in ("file_data", "file_url", "file_id"):
        value = given.get(field)
        if not isinstance(value, str) or not value:
            continue
        at = f"{path}.{field}"
        if field == "file_id":
            return Media("document", name, at, StoredFile(value, low_detail))
        if value.startswith("data:"):
            kind = kind_of_type(value[len("data:") :].partition(",")[0].partition(";")[0])
            if kind != "document":
                return Media(kind, name, at, MediaUrl(value))
            return Media(kind, name, at, MediaUrl(value, name, low_detail))
        shown = name or (_file_name(value) if field == "file_url" else "")
        kind = _ENDINGS.get(shown.rpartition(".")[2].lower(), "document")
        if kind != "document":
            return Media(kind, name, at, MediaUrl(value))
        return Media(kind, shown, at, MediaUrl(value, shown, low_detail))
    return Media("document", name, path)


def document_at(url: str, name: str = "") -> tuple[str, MediaUrl]:
    """Return the name and the source of a document at a URL."""
    return name or _file_name(url), MediaUrl(url, _file_name(url))


def _file_name(url: str) -> str:
    """Return the last segment of a URL's path."""
    return unquote(url.partition("#")[0].partition("?")[0].rstrip("/").rpartition("/")[2])
