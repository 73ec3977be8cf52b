"""Parses ``system`` and ``messages`` of Anthropic's Messages API to a conversation.

It follows llama-server's conversion (tools/server/server-chat.cpp, server_chat_convert_anthropic_to_oai) with four
differences: tool results precede a message's text, next to their calls; they have the name of their tool; omitted
content is reported; and calls that Anthropic's servers executed are calls, too.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from server.chat.conversation import Call, Content, Media, Message, Part, TextPart, text_content
from server.chat.prompt import DOCUMENT_END, document_start
from server.dialects.fields import MAX_MESSAGES, as_array, as_object, as_string, json_text, string_of, wrong_type
from server.dialects.mcp import function_name
from server.dialects.media import document_at, kind_of_type
from server.dialects.messages.mcp import LISTING
from server.dialects.messages.tools import ToolReader
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher, TamperedReasoning
from server.dialects.tools import model_name
from server.dialects.warnings import FOREIGN_REASONING, left_out
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


def read_parts(block: Block, kind: str, path: str, warnings: list[str], tools: ToolReader) -> list[Part] | None:
    """Return the content of a block; None if this type of block has no content for a model.

    Adds fields without effect to `warnings`. Media have paths such as ``messages.0.content.1.image``: Claude Code
    reads from an error which block to omit, and retries. Raises `InvalidRequest`.
    """
    if kind in _TOOL_CHANGES:
        text = _tool_change(block, kind, path, tools)
        return None if text is None else [TextPart(text)]
    citations = block.get("citations")
    if kind in _CITED and isinstance(citations, dict) and citations.get("enabled"):
        warnings.append(f"{path}.citations is ignored: replies cite no documents")
    read = _READERS.get(kind)
    return None if read is None else read(block, path)


def read_result(given: object, path: str, warnings: list[str], tools: ToolReader) -> Content:
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
        shown = read_parts(block, kind, where, warnings, tools)
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
    """Join adjacent texts."""
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


def _tool_change(block: Block, kind: str, path: str, tools: ToolReader) -> str | None:
    """Return the text for a tool that is found, added or withdrawn; None for Anthropic's server tools."""
    if kind == "tool_reference":
        return tools.later.refer(string_of(block, "tool_name", path))
    match block.get("tool"):
        case {"type": "tool_reference", "name": str(name)}:
            return (
                tools.later.refer(name) if kind == "tool_addition" else f"[The tool {name} can't be called any more.]\n"
            )
        case {"type": "tool_definition", "definition": definition} if kind == "tool_addition":
            return tools.define(definition, f"{path}.tool.definition")
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


_ROLES = ("user", "assistant", "system")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
"""Blocks of reasoning, and the field of each that has the encrypted text."""
_STAMP = re.compile(r"x-anthropic-billing-header:(?:\s*\w+=[^;\s]*;)+")
_STAMPED = re.compile(r"(?<=\scch=).{5}(?=;)|(?<=\scc_version=)(\d+\.\d+\.\d+)\.\w+(?=;)")


def read_conversation(
    system: object,
    messages: object,
    warnings: list[str],
    tools: ToolReader,
    cipher: ReasoningCipher = NO_CIPHER,
) -> list[Message]:
    """Return the messages, the system prompt first.

    Adds omitted content to `warnings` and introduced tools to `tools`. `cipher` decrypts reasoning. A message
    without blocks and an empty system prompt are omitted. There may be no message at all, as in llama-server: then
    the model starts. Raises `InvalidRequest` with a path such as ``messages.0.content.1.text``.
    """
    found = _system(system, warnings)
    if messages is None:
        raise InvalidRequest("messages: is required", "messages")
    messages = as_array(messages, "messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: must have at most {MAX_MESSAGES} messages", "messages")
    names = dict[str, str]()
    for index, message in enumerate(messages):
        found += _message(message, f"messages.{index}", names, warnings, tools, cipher)
    return found


def _system(given: object, warnings: list[str]) -> list[Message]:
    if isinstance(given, list):
        text = "".join(_system_block(block, f"system.{index}", warnings) for index, block in enumerate(given))
    elif isinstance(given, str) or given is None:
        text = steady_system(given or "")
    else:
        raise wrong_type("system", "a string or an array of text blocks", given)
    return [Message("system", text)] if text else []


def _system_block(given: object, path: str, warnings: list[str]) -> str:
    block, kind = typed(given, path)
    if kind != "text":
        skip(kind, warnings)
        return ""
    return steady_system(string_of(block, "text", path))


def steady_system(text: str) -> str:
    """Return `text` with Claude Code's leading stamp replaced by a constant, so that requests share a prefix.

    In ``x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli; cch=a5145;``, the end of
    ``cc_version`` depends on a session's first words and ``cch`` on the whole request. No cached prefix would extend
    past them (llama-server handles ``cch``: server-chat.cpp, normalize_anthropic_billing_header).
    """
    found = _STAMP.match(text)
    if found is None:
        return text
    return _STAMPED.sub(lambda part: f"{part[1]}.fff" if part[1] else "fffff", found[0]) + text[found.end() :]


def _message(
    given: object,
    path: str,
    names: dict[str, str],
    warnings: list[str],
    tools: ToolReader,
    cipher: ReasoningCipher,
) -> list[Message]:
    given = as_object(given, path)
    role = given.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f'{path}.role: must be "user", "assistant" or "system"', f"{path}.role")
    content = given.get("content")
    if content is None:
        if role == "assistant":  # llama-server leaves it out, too
            return []
        raise InvalidRequest(f"{path}.content: is required", f"{path}.content")
    if isinstance(content, str):
        return [Message(role, content)]
    if not isinstance(content, list):
        raise wrong_type(f"{path}.content", "a string or an array of blocks", content)
    turn = _Turn(role, names, warnings, tools, cipher)
    for index, block in enumerate(content):
        where = f"{path}.content.{index}"
        turn.take(*typed(block, where), where)
    return turn.messages()


@dataclass(slots=True)
class _Turn:
    """The blocks of one message. ``names``: the tools of all calls so far, by the ids of the calls."""

    role: str
    names: dict[str, str]
    warnings: list[str]
    tools: ToolReader
    cipher: ReasoningCipher
    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    done: list[Message] = field(default_factory=list)

    def take(self, block: Block, kind: str, path: str) -> None:
        if kind in _CALLS or kind in _OPAQUE:
            self._require(kind, path, "assistant")
            if kind in _CALLS:
                self._call(block, path)
            else:
                self._take_reasoning(block, kind, path)
        elif kind == LISTING:  # `pinned_lists` reads it
            self._require(kind, path, "assistant")
        elif kind == "tool_result" or kind.endswith("_tool_result"):
            self._require(kind, path, "user", "assistant")
            self._result(block, kind, path)
        else:
            shown = read_parts(block, kind, path, self.warnings, self.tools)
            if shown is None:
                skip(kind, self.warnings)
            else:
                self.parts += shown

    def messages(self) -> list[Message]:
        """Return messages in template order: the tool results, then the message itself."""
        self._end()
        return self.done

    def _require(self, kind: str, path: str, *roles: str) -> None:
        if self.role not in roles:
            said = f"a block of type {kind!r} can't be in a message of the role {self.role!r}"
            raise InvalidRequest(f"{path}.type: {said}", f"{path}.type")

    def _end(self) -> None:
        """Create a message from the content so far."""
        if self.parts or self.calls or self.reasoning:
            content = tuple(self.parts) or ""
            self.done.append(Message(self.role, content, "".join(self.reasoning), tuple(self.calls)))
        self.parts, self.reasoning, self.calls = [], [], []

    def _take_reasoning(self, block: Block, kind: str, path: str) -> None:
        """Take the encrypted text, or the visible one if this server cannot decrypt it. Raises `InvalidRequest`."""
        field = _OPAQUE[kind]
        visible = string_or_none(block, "thinking", path) if kind == "thinking" else ""
        opaque = string_of(block, field, path) if block.get(field) is not None else ""
        try:
            decrypted = self.cipher.decrypt(opaque)
        except TamperedReasoning:
            raise InvalidRequest(f"{path}: Invalid `{field}` in `{kind}` block", f"{path}.{field}") from None
        if opaque and decrypted is None:
            self.warnings.append(FOREIGN_REASONING.format(f"{field} of {kind} blocks"))
        if text := visible if decrypted is None else decrypted:
            self.reasoning.append(text)

    def _call(self, block: Block, path: str) -> None:
        call_id = string_or_none(block, "id", path)
        name = model_name(string_of(block, "name", path), block.get("toolset_name"))
        if block["type"] == "mcp_tool_use" and isinstance(block.get("server_name"), str):
            name = function_name(block["server_name"], name)
        given = block.get("input")
        if given is None:
            given = {}
        arguments = given if isinstance(given, str) else json_text(given)
        self.names[call_id] = name
        self.calls.append(Call(name, arguments, call_id))

    def _result(self, block: Block, kind: str, path: str) -> None:
        call_id = string_or_none(block, "tool_use_id", path)
        if not isinstance(block.get("is_error"), bool | None):
            raise wrong_type(f"{path}.is_error", "a boolean", block["is_error"])
        if self.role == "assistant":  # a call that was answered within the turn
            self._end()
        given, where = block.get("content"), f"{path}.content"
        own = kind == "tool_result"
        content = read_result(given, where, self.warnings, self.tools) if own else read_server_result(given, where)
        self.done.append(Message("tool", content, call_id=call_id, name=self.names.get(call_id, "")))
