"""Parses ``system`` and ``messages`` of Anthropic's Messages API to a conversation.

It follows llama-server's conversion (tools/server/server-chat.cpp, server_chat_convert_anthropic_to_oai) with four
differences: tool results precede a message's text, next to their calls; they have the name of their tool; omitted
content is reported; and calls that Anthropic's servers executed are calls, too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from server.chat.conversation import Call, Content, Media, Message, Part, TextPart, text_content
from server.chat.prompt import DOCUMENT_END, document_start
from server.dialects.content import document_at, kind_of_type
from server.dialects.fields import MAX_MESSAGES, as_array, as_object, as_string, json_text, string_of, wrong_type
from server.dialects.mcp import function_name
from server.dialects.messages.mcp import LISTING
from server.dialects.messages.tools import ToolReader
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher, TamperedReasoning
from server.dialects.tools import model_name
from server.dialects.warnings import FOREIGN_REASONING, left_out
from server.errors import InvalidRequest
from server.media.source import MediaUrl, Source, StoredFile

Block = dict[str, Any]
_SHOWN_CHARS = 40
_DEFAULT_TYPE = "image/jpeg"  # llama-server's
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
    if messages is None:
        raise InvalidRequest("messages: is required", "messages")
    messages = as_array(messages, "messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: must have at most {MAX_MESSAGES} messages", "messages")
    reader = _Reader(warnings, tools, cipher)
    reader.read_system(system)
    for index, message in enumerate(messages):
        reader.read(message, f"messages.{index}")
    return reader.messages


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


@dataclass(slots=True)
class _Reader:
    """Appends to `messages`. ``names``: the tools of all calls so far, by the ids of the calls. ``role``, ``parts``,
    ``reasoning`` and ``calls`` are those of the current message.
    """

    warnings: list[str]
    tools: ToolReader
    cipher: ReasoningCipher
    messages: list[Message] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    role: str = ""
    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def read_system(self, given: object) -> None:
        """Take the system prompt: a text or text blocks."""
        text = ""
        for block, path in _blocks("" if given is None else given, "system"):
            if block["type"] == "text":
                text += steady_system(string_of(block, "text", path))
            else:
                self._skip(block["type"])
        if text:
            self.messages.append(Message("system", text))

    def read(self, given: object, path: str) -> None:
        """Take one message. Its tool results become messages before it, as templates expect."""
        given = as_object(given, path)
        role, content = given.get("role"), given.get("content")
        if role not in _ROLES:
            raise InvalidRequest(f'{path}.role: must be "user", "assistant" or "system"', f"{path}.role")
        self.role = role
        if isinstance(content, str):
            self.messages.append(Message(role, content))
            return
        if content is None and role == "assistant":  # llama-server leaves it out, too
            return
        for block, where in _blocks(content, f"{path}.content"):
            self._block(block, block["type"], where)
        self._end()

    def _block(self, block: Block, kind: str, path: str) -> None:
        if kind in _CALLS:
            self._require(kind, path, "assistant")
            self._call(block, path)
        elif kind in _OPAQUE:
            self._require(kind, path, "assistant")
            self._take_reasoning(block, kind, path)
        elif kind == LISTING:  # `pinned_lists` reads it
            self._require(kind, path, "assistant")
        elif kind == "tool_result" or kind.endswith("_tool_result"):
            self._require(kind, path, "user", "assistant")
            self._result(block, kind, path)
        else:
            self.parts += self._content(block, path)

    def _skip(self, kind: str) -> None:
        self.warnings.append(left_out("blocks", kind, 1))

    def _require(self, kind: str, path: str, *roles: str) -> None:
        if self.role not in roles:
            said = f"a block of type {kind!r} can't be in a message of the role {self.role!r}"
            raise InvalidRequest(f"{path}.type: {said}", f"{path}.type")

    def _end(self) -> None:
        """Create a message from the content so far."""
        if self.parts or self.calls or self.reasoning:
            content = tuple(self.parts) or ""
            self.messages.append(Message(self.role, content, "".join(self.reasoning), tuple(self.calls)))
        self.parts, self.reasoning, self.calls = [], [], []

    def _take_reasoning(self, block: Block, kind: str, path: str) -> None:
        """Take the encrypted text, or the visible one if this server cannot decrypt it. Raises `InvalidRequest`."""
        name = _OPAQUE[kind]
        visible = _string_or_none(block, "thinking", path) if kind == "thinking" else ""
        opaque = string_of(block, name, path) if block.get(name) is not None else ""
        try:
            decrypted = self.cipher.decrypt(opaque)
        except TamperedReasoning:
            raise InvalidRequest(f"{path}: Invalid `{name}` in `{kind}` block", f"{path}.{name}") from None
        if opaque and decrypted is None:
            self.warnings.append(FOREIGN_REASONING.format(f"{name} of {kind} blocks"))
        if text := visible if decrypted is None else decrypted:
            self.reasoning.append(text)

    def _call(self, block: Block, path: str) -> None:
        call_id = _string_or_none(block, "id", path)
        name = model_name(string_of(block, "name", path), block.get("toolset_name"))
        if block["type"] == "mcp_tool_use" and isinstance(block.get("server_name"), str):
            name = function_name(block["server_name"], name)
        given = {} if block.get("input") is None else block["input"]
        self.names[call_id] = name
        self.calls.append(Call(name, given if isinstance(given, str) else json_text(given), call_id))

    def _result(self, block: Block, kind: str, path: str) -> None:
        call_id = _string_or_none(block, "tool_use_id", path)
        if not isinstance(block.get("is_error"), bool | None):
            raise wrong_type(f"{path}.is_error", "a boolean", block["is_error"])
        if self.role == "assistant":  # a call that was answered within the turn
            self._end()
        given = block.get("content")
        content: Content = ""
        texts = isinstance(given, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in given)
        if kind == "tool_result" or texts or isinstance(given, str):
            content = self._result_content("" if given is None else given, f"{path}.content")
        elif given is not None:  # of one of Anthropic's server tools
            content = json_text(_readable(given))
        self.messages.append(Message("tool", content, call_id=call_id, name=self.names.get(call_id, "")))

    def _result_content(self, given: object, path: str) -> Content:
        """Return a tool result: a text, or blocks, whose texts are concatenated, as in llama-server."""
        return text_content(
            _joined(part for block, where in _blocks(given, path) for part in self._content(block, where))
        )

    def _content(self, block: Block, path: str) -> list[Part]:
        """Return the content of a block. Skips a block that has no content for a model, with a warning.

        Media have paths such as ``messages.0.content.1.image``: Claude Code reads from an error which block to omit,
        and retries. Raises `InvalidRequest`.
        """
        kind, citations = block["type"], block.get("citations")
        if kind in ("document", "search_result") and isinstance(citations, dict) and citations.get("enabled"):
            self.warnings.append(f"{path}.citations is ignored: replies cite no documents")
        match kind:
            case "text":
                return [TextPart(string_of(block, "text", path))]
            case "image":
                return [_image(block, path)]
            case "document":
                return _document(block, path)
            case "search_result":
                head = [text for name in ("title", "source") if isinstance(text := block.get(name), str) and text]
                texts = [part.text for part in _nested(block, path) if isinstance(part, TextPart)]
                return [TextPart("\n".join([*head, *texts]))]
            case "compaction":  # a summary of earlier turns; its server may have encrypted the text
                return [TextPart(block["content"])] if isinstance(block.get("content"), str) else []
            case "browser_state":
                return [
                    TextPart(json_text({name: block[name] for name in ("tabs", "state_changes") if block.get(name)}))
                ]
            case "tool_reference" | "tool_addition" | "tool_removal":
                if text := self._tool_change(block, kind, path):
                    return [TextPart(text)]
        self._skip(kind)
        return []

    def _tool_change(self, block: Block, kind: str, path: str) -> str | None:
        """Return the text for a tool that is found, added or withdrawn; None for Anthropic's server tools."""
        if kind == "tool_reference":
            return self.tools.later.refer(string_of(block, "tool_name", path))
        match block.get("tool"):
            case {"type": "tool_reference", "name": str(name)} if kind == "tool_addition":
                return self.tools.later.refer(name)
            case {"type": "tool_reference", "name": str(name)}:
                return f"[The tool {name} can't be called any more.]\n"
            case {"type": "tool_definition", "definition": definition} if kind == "tool_addition":
                return self.tools.define(definition, f"{path}.tool.definition")
        return None


def _blocks(given: object, path: str) -> Iterable[tuple[Block, str]]:
    """Yield the blocks of a content with their paths; a text is one block. Raises `InvalidRequest`."""
    if isinstance(given, str):
        given = [{"type": "text", "text": given}] if given else []
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array of blocks", given)
    for index, entry in enumerate(given):
        where = f"{path}.{index}"
        block = as_object(entry, where)
        as_string(block.get("type"), f"{where}.type")
        yield block, where


def _string_or_none(block: Block, name: str, path: str) -> str:
    """Return the string at `path`, "" for null: ids and reasoning that clients have dropped."""
    return "" if block.get(name, block) is None else string_of(block, name, path)


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


def _image(block: Block, path: str) -> Part:
    source = block.get("source")
    return Media("image", _source_type(source), f"{path}.image", _source(source))


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
            given = _nested(source, f"{path}.source")
            if not (title or context or any(isinstance(part, TextPart) for part in given)):
                return given  # images alone are no text that needs a frame
            lines = [TextPart(f"{part.text}\n", plain=True) if isinstance(part, TextPart) else part for part in given]
            return _joined([TextPart(start, plain=True), *lines, TextPart(DOCUMENT_END, plain=True)])
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


def _nested(given: Block, path: str) -> list[Part]:
    """Return the texts and images in ``content`` of a document or a search result."""
    parts: list[Part] = []
    for block, where in _blocks(given.get("content"), f"{path}.content"):
        if block["type"] not in ("text", "image"):
            raise InvalidRequest(f'{where}.type: must be "text" or "image"', f"{where}.type")
        parts.append(TextPart(string_of(block, "text", where)) if block["type"] == "text" else _image(block, where))
    return parts


def _source(source: Any) -> Source | None:
    """Return where a file is: in base64, at a URL, or uploaded."""
    match source:
        case {"type": "base64", "data": str(data)}:
            media_type = source.get("media_type")
            return MediaUrl(f"data:{media_type if isinstance(media_type, str) else _DEFAULT_TYPE};base64,{data}")
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
