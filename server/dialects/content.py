"""Content parts of Chat Completions and Responses, which clients mix, and the media of all dialects."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from server.chat.conversation import Part, TextPart
from server.dialects.fields import as_object, string_of, text_in, wrong_type
from server.dialects.warnings import Omitted
from server.media.source import Media, MediaKind, MediaUrl, Source, StoredFile

TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), "text"),
    "refusal": "refusal",
}
MEDIA: Mapping[str, MediaKind] = {
    **dict.fromkeys(("image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("input_audio", "audio_url"), "audio"),
    **dict.fromkeys(("input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file"), "document"),
}
REASONING = ("thinking", "reasoning", "redacted_thinking")
_FILE_KEYS = ("data", "url", "file_data")
"""Members of a part that may contain its file."""


def read_content(given: object, path: str, omitted: Omitted) -> list[Part]:
    """Return the parts of a string or a list. Unsupported parts are dropped and counted in `omitted`.

    Raises `InvalidRequest` with the path of the part.
    """
    if isinstance(given, str):
        return [TextPart(given)] if given else []
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array", given)
    found = (_part(part, f"{path}.{index}", omitted) for index, part in enumerate(given))
    return [part for part in found if part is not None]


def _part(given: object, path: str, omitted: Omitted) -> Part | None:
    given = as_object(given, path)
    kind = given.get("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a text such as input_text", kind)
    if kind in TEXTS:
        return TextPart(string_of(given, TEXTS[kind], path))
    if kind in MEDIA:
        return _medium(given, kind, path)
    if kind in REASONING:
        return None
    text = next((given[key] for key in ("text", "logs") if isinstance(given.get(key), str)), None)
    if text is None:
        omitted.add("parts", kind)
        return None
    return TextPart(text)


def _medium(given: Mapping[str, Any], kind: str, path: str) -> Media:
    if kind in ("file", "input_file"):
        file = given.get("file") if kind == "file" else given
        return file_of(file if isinstance(file, dict) else {}, path if file is given else f"{path}.file")
    found: Source | None
    if MEDIA[kind] == "image":
        found = link(given.get("image_url"), *_FILE_KEYS)
    else:
        written = given.get(kind) or given.get("video_url") or dict(given)  # an object, or only a URL
        found = link(written, *_FILE_KEYS)
    if found is None and (file_id := text_in(given, "file_id")):
        found = StoredFile(file_id)
    return Media(MEDIA[kind], text_in(given, "filename"), f"{path}.type", found)


_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")
_ENDINGS: Mapping[str, MediaKind] = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "bmp", "webp", "avif", "heic", "heif"), "image"),
    **dict.fromkeys(("wav", "mp3", "flac"), "audio"),
    **dict.fromkeys(("mp4", "mov", "m4v", "webm", "mkv", "avi"), "video"),
}


def link(given: object, *keys: str) -> MediaUrl | None:
    """Return the URL or base64 data of a part: a string, or the first of `keys` in an object. None if there is none."""
    if isinstance(given, dict):
        given = next((given[key] for key in keys if isinstance(given.get(key), str) and given[key]), None)
    return MediaUrl(given) if isinstance(given, str) and given else None


def kind_of_type(media_type: object) -> MediaKind:
    """Return ``image`` for ``image/png``, and ``document`` for any type other than image, audio or video."""
    first = media_type.partition("/")[0] if isinstance(media_type, str) else ""
    return next((kind for kind in _KINDS if kind == first), "document")


def file_of(given: Mapping[str, Any], path: str) -> Media:
    """Return a file in OpenAI's format: ``file_data``, ``file_url``, or an uploaded ``file_id``.

    The media type or the file name determines the kind; without them, the content does later.
    """
    name, low_detail = text_in(given, "filename"), given.get("detail") == "low"
    for key in ("file_data", "file_url", "file_id"):
        value = text_in(given, key)
        if not value:
            continue
        at = f"{path}.{key}"
        if key == "file_id":
            return Media("document", name, at, StoredFile(value, low_detail))
        if value.startswith("data:"):
            shown, kind = name, kind_of_type(value[len("data:") :].partition(",")[0].partition(";")[0])
        else:
            shown = name or (file_name(value) if key == "file_url" else "")
            kind = _ENDINGS.get(shown.rpartition(".")[2].lower(), "document")
        if kind != "document":
            return Media(kind, name, at, MediaUrl(value))
        return Media(kind, shown, at, MediaUrl(value, shown, low_detail))
    return Media("document", name, path)


def file_name(url: str) -> str:
    """Return the last segment of a URL's path."""
    return unquote(url.partition("#")[0].partition("?")[0].rstrip("/").rpartition("/")[2])
