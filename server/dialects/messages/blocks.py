"""Content blocks of Anthropic's Messages API with content for a model: text, media, documents, search results."""

from collections.abc import Callable, Iterable
from typing import Any

from server.chat.conversation import Content, Media, Part, TextPart, text_content
from server.chat.prompt import DOCUMENT_END, document_start
from server.dialects.fields import as_object, as_string, json_text, string_of, wrong_type
from server.dialects.media import document_at, kind_of_type
from server.dialects.messages.tools import DeferredDefinitions
from server.dialects.warnings import left_out
from server.errors import InvalidRequest
from server.media.source import MediaUrl, Source, StoredFile

Block = dict[str, Any]
_SHOWN_CHARS = 40
_UNSAID_TYPE = "image/jpeg"  # llama-server's


def typed(given: object, path: str) -> tuple[Block, str]:
    """A block and its type. Raises `InvalidRequest`."""
    given = as_object(given, path)
    kind = as_string(given.get("type"), f"{path}.type")
    return given, kind


def string_or_none(block: Block, name: str, path: str) -> str:
    """Return the string at `path`, "" for null: ids and reasoning that clients have dropped."""
    return "" if block.get(name, block) is None else string_of(block, name, path)


def read_parts(
    block: Block, kind: str, path: str, warnings: list[str], later: DeferredDefinitions
) -> list[Part] | None:
    """Return the content of a block; None if this type of block has no content for a model.

    Adds fields without effect to `warnings`. Media have paths such as ``messages.0.content.1.image``: Claude Code
    reads from an error which block to omit, and retries. Raises `InvalidRequest`.
    """
    if kind in _TOOL_CHANGES:
        text = _tool_change(block, kind, path, later)
        return None if text is None else [TextPart(text)]
    citations = block.get("citations")
    if kind in _CITED and isinstance(citations, dict) and citations.get("enabled"):
        warnings.append(f"{path}.citations is ignored: replies cite no documents")
    read = _READERS.get(kind)
    return None if read is None else read(block, path)


def read_result(given: object, path: str, warnings: list[str], later: DeferredDefinitions) -> Content:
    """Return a tool result: a text, or blocks, whose texts are concatenated, as in llama-server.

    Adds omitted blocks to `warnings`. Raises `InvalidRequest`.
    """
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array of blocks", given)
    parts: list[Part] = []
    for index, entry in enumerate(given):
        where = f"{path}.{index}"
        block, kind = typed(entry, where)
        shown = read_parts(block, kind, where, warnings, later)
        if shown is None:
            skip(kind, warnings)
        else:
            parts += shown
    return text_content(_joined(parts))


def read_server_result(given: object, path: str) -> Content:
    """Return the result of one of Anthropic's server tools as JSON; a list of texts as text."""
    if isinstance(given, list) and all(isinstance(entry, dict) and entry.get("type") == "text" for entry in given):
        return "".join(string_of(block, "text", f"{path}.{index}") for index, block in enumerate(given))
    if given is None or isinstance(given, str):
        return given or ""
    return json_text(_readable(given))


def skip(kind: str, warnings: list[str]) -> None:
    """Add a warning that a block is omitted."""
    warnings.append(left_out("blocks", kind, 1))


def _joined(parts: Iterable[Part]) -> list[Part]:
    """With texts that follow each other as one."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, TextPart) and isinstance(last, TextPart) and part.plain == last.plain:
            found[-1] = TextPart(last.text + part.text, part.plain)
        else:
            found.append(part)
    return found


def _readable(value: Any) -> Any:
    """Return the content without encrypted parts for Anthropic's servers, and without files."""
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    file = value.get("type") == "base64"
    return {
        key: _readable(entry)
        for key, entry in value.items()
        if not key.startswith("encrypted_") and not (file and key == "data")
    }


def _text(block: Block, path: str) -> list[Part]:
    return [TextPart(string_of(block, "text", path))]


def _image(block: Block, path: str) -> list[Part]:
    source = block.get("source")
    return [Media("image", _source_type(source), f"{path}.image", _source(source))]


def _document(block: Block, path: str) -> list[Part]:
    """A document: its text is in the block, or it is a file that has to be read."""
    title, context = (text if isinstance(text := block.get(key), str) else "" for key in ("title", "context"))
    source = as_object(block.get("source"), f"{path}.source")
    start = document_start(title, "text/plain", context)
    match source.get("type"):
        case "text":
            text = string_of(source, "data", f"{path}.source")
            return [TextPart(f"{start}{text}\n{DOCUMENT_END}", plain=True)]
        case "content":
            given = _content(source.get("content"), f"{path}.source.content")
            if not (title or context or any(isinstance(part, TextPart) for part in given)):
                return given  # images alone are no text that needs a frame
            parts = map(_plain, given)
            return _joined([TextPart(start, plain=True), *parts, TextPart(DOCUMENT_END, plain=True)])
    at, media_type = f"{path}.document", source.get("media_type")
    kind = kind_of_type(media_type)
    match source:
        case {"type": "url", "url": str(url)} if url:
            name, found = document_at(url, title)
            return [Media("document", name, at, found, context=context)]
        case {"type": "base64", "data": str(data)} if kind == "document":
            declared = media_type if isinstance(media_type, str) else ""
            return [Media(kind, title, at, MediaUrl(f"data:{declared};base64,{data}"), context=context)]
        case {"type": "file"}:
            return [Media("document", title, at, _source(source), context=context)]
    return [Media(kind, _source_type(source), at, _source(source))]


def _plain(part: Part) -> Part:
    """A line of a document, and a medium as it is."""
    return TextPart(f"{part.text}\n", plain=True) if isinstance(part, TextPart) else part


def _content(given: object, path: str) -> list[Part]:
    if isinstance(given, str):
        return [TextPart(given)]
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array of blocks", given)
    parts: list[Part] = []
    for index, entry in enumerate(given):
        where = f"{path}.{index}"
        block, kind = typed(entry, where)
        if kind not in ("text", "image"):
            raise InvalidRequest(f'{where}.type: must be "text" or "image"', f"{where}.type")
        parts += _READERS[kind](block, where)
    return parts


def _source(source: object) -> Source | None:
    """Return where a file is: in base64, at a URL, or uploaded."""
    match source:
        case {"type": "base64", "data": str(data), "media_type": str(media_type)}:
            return MediaUrl(f"data:{media_type};base64,{data}")
        case {"type": "base64", "data": str(data)}:
            return MediaUrl(f"data:{_UNSAID_TYPE};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return MediaUrl(url)
        case {"type": "file", "file_id": str(file_id)} if file_id:
            return StoredFile(file_id)
    return None


def _source_type(source: object) -> str:
    """``image/png``, or how the source is given."""
    found = source if isinstance(source, dict) else {}
    names = (found.get("media_type"), found.get("type"))
    return next((name[:_SHOWN_CHARS] for name in names if isinstance(name, str) and name.isprintable()), "")


def _search_result(block: Block, path: str) -> list[Part]:
    """One that the client has found: title, source, and the texts."""
    head = [text for name in ("title", "source") if isinstance(text := block.get(name), str) and text]
    return [TextPart("\n".join([*head, *(part.text for part in _texts(block.get("content"), f"{path}.content"))]))]


def _texts(given: object, path: str) -> list[TextPart]:
    return [part for part in _content(given, path) if isinstance(part, TextPart)]


def _compaction(block: Block, _: str) -> list[Part]:
    """Return the summary of earlier turns; the server that created it may have encrypted the text."""
    text = block.get("content")
    return [TextPart(text)] if isinstance(text, str) else []


def _tool_change(block: Block, kind: str, path: str, later: DeferredDefinitions) -> str | None:
    """Return the text for a tool that is found, added or withdrawn; None for Anthropic's server tools."""
    if kind == "tool_reference":
        return later.tell(string_of(block, "tool_name", path))
    match block.get("tool"):
        case {"type": "tool_reference", "name": str(name)}:
            return later.tell(name) if kind == "tool_addition" else f"[The tool {name} can't be called any more.]\n"
        case {"type": "tool_definition", "definition": definition} if kind == "tool_addition":
            return later.define(definition, f"{path}.tool.definition")
    return None


def _browser_state(block: Block, _: str) -> list[Part]:
    """Return the tabs of the client's browser, and the changes."""
    said = {name: block[name] for name in ("tabs", "state_changes") if block.get(name)}
    return [TextPart(json_text(said))]


_READERS: dict[str, Callable[[Block, str], list[Part]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "compaction": _compaction,
    "browser_state": _browser_state,
}
_CITED = ("document", "search_result")
_TOOL_CHANGES = ("tool_reference", "tool_addition", "tool_removal")
