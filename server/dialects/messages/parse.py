"""Anthropic's Messages API: parses the body to a `Conversation`; `write` creates the reply.

llama.cpp's sampling fields are accepted in addition to Anthropic's. The conversation follows llama-server's conversion
(tools/server/server-chat.cpp, server_chat_convert_anthropic_to_oai) with four differences: tool results precede a
message's text, next to their calls; they have the name of their tool; dropped content causes a warning; and calls that
Anthropic's servers executed become calls.

A tool with an ``input_schema`` is a function. The types whose calls the client executes (``bash_...``, a toolset) are
functions of `tool_types`. Tools of other types are dropped, and are an error only if ``tool_choice`` names one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

from pydantic import Field

from server.chat.conversation import (
    NO_PARAMETERS,
    Call,
    Content,
    Conversation,
    Message,
    Part,
    ReasoningSettings,
    TextPart,
    Tool,
    text_content,
)
from server.chat.prompt import DOCUMENT_END, document_start, render
from server.dialects.common import Header, Json, random_id
from server.dialects.content import file_name, kind_of_type
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.errors import anthropic_error_event
from server.dialects.fields import (
    MAX_MESSAGES,
    Blocks,
    Body,
    Count,
    Format,
    Messages,
    Object,
    Objects,
    TextOrObject,
    ToolObjects,
    as_array,
    as_object,
    dicts_in,
    json_text,
    parse,
    refuse_deep,
    string_of,
    text_in,
    wrong_type,
)
from server.dialects.generation import (
    GenerationFields,
    ReasoningOption,
    ServingFields,
    Stops,
    reasoning_enabled,
    template_kwargs,
)
from server.dialects.mcp import ServerTools, ToolRequest, function_name
from server.dialects.messages.mcp import LISTING, TOOLSET, ToolConfig, listing_blocks, unlisted
from server.dialects.messages.write import PING, MessageWriter
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher, TamperedReasoning
from server.dialects.sampling import SamplingFields
from server.dialects.tool_types import TOOLSETS, Toolset, ToolType, anthropic_type
from server.dialects.tools import ClientName, ReadTool, ToolReader, is_strict, model_name, name_and_description
from server.dialects.warnings import FOREIGN_REASONING, omission_warning, unused_fields
from server.errors import InvalidRequest, invalid, short
from server.media.source import NO_MEDIA, LoadedMedia, Media, MediaUrl, Source, StoredFile
from server.pool.model import LoadedModel
from server.structured.response_format import ANY_OBJECT, ResponseFormat

DEFAULT_MAX_TOKENS = 4096
"""llama-server's default for ``max_tokens``."""
DEFAULT_THINKING_BUDGET = 10_000
"""llama-server's default for ``budget_tokens`` of ``thinking: {"type": "enabled"}``."""
_HARMLESS_EDIT = "clear_thinking_20251015"


class OutputConfig(Body):
    effort: str | None = None
    format: Format | None = None


class MessagesBody(ServingFields, SamplingFields):
    """The body of ``POST /v1/messages`` and its ``/count_tokens``, which needs no ``max_tokens``."""

    without_effect: ClassVar = dict.fromkeys(
        ("container", "compaction", "thread"), ({}, "only Anthropic's servers have it")
    )
    max_tokens: Count | None = None
    messages: Messages = None
    system: Blocks = None
    stop_sequences: Stops | None = None
    tools: ToolObjects = None
    tool_choice: TextOrObject = None
    thinking: ReasoningOption | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mcp_servers: Objects = None
    context_management: Object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(ToolRequest):
    """A parsed request. ``show_reasoning``: whether thinking blocks contain the reasoning text."""

    show_reasoning: bool = True

    def generation(self, context: Context) -> Generation:
        header = Header(context.model.spec.id, f"msg_{random_id()}")
        output, request = self.prepare(context, header.id, self.conversation)
        return Generation([request], MessageWriter(self, header, output.parser))


def parse_messages(
    given: dict[str, Any],
    cipher: ReasoningCipher = NO_CIPHER,
    *,
    generate: bool = True,
    mcp: ServerTools | None = None,
) -> MessagesRequest:
    """Parse the body. `cipher`: encrypts and decrypts reasoning. `generate`: false to count tokens. `mcp`: the tools of
    the body's MCP servers, None if this server allows no MCP servers.
    """
    body = parse(MessagesBody, given)
    if generate and body.max_tokens is None:
        body = body.model_copy(update={"max_tokens": DEFAULT_MAX_TOKENS})
    warnings = list(_unsupported_features(body, has_mcp=mcp is not None))
    requested = () if mcp is None else mcp.requested
    reader = MessageTools(body.tools, None if mcp is None else mcp.functions)
    messages = read_conversation(body.system, body.messages, warnings, reader, cipher)
    tools = reader.finish(body.tool_choice, None, warnings)
    config, thinking = body.output_config or OutputConfig(), body.thinking
    budget = None if thinking is None else thinking.budget_tokens
    if thinking is not None and thinking.type == "enabled" and budget is None:
        budget = DEFAULT_THINKING_BUDGET
    enabled = reasoning_enabled(body.chat_template_kwargs, None if thinking is None else thinking.enabled)
    conversation = Conversation(
        tuple(messages),
        tools,
        ReasoningSettings(enabled, config.effort or "", budget),
        _response_format(config.format, "output_config.format")
        or _response_format(body.output_format, "output_format"),
        template_kwargs=template_kwargs(body.chat_template_kwargs),
    )
    return MessagesRequest(
        options=GenerationFields.of(body, stop=body.stop_sequences, user=(body.metadata or {}).get("user_id")),
        media=conversation.media,
        warnings=[*unused_fields(given, MessagesBody, warnings), *unlisted(requested)],
        conversation=conversation,
        cipher=cipher,
        names=reader.names,
        show_reasoning=thinking is None or thinking.display != "omitted",
        server_tools=mcp,
        listings=listing_blocks(requested),
    )


def _unsupported_features(body: MessagesBody, *, has_mcp: bool) -> Iterator[str]:
    """Yield warnings for fields that only Anthropic's servers support."""
    if body.mcp_servers and not has_mcp:
        yield "mcp_servers is ignored: this server allows no MCP servers"
    context = body.context_management
    for _, edit in dicts_in(context.get("edits") if isinstance(context, dict) else None):
        if edit.get("type") != _HARMLESS_EDIT:  # chat templates drop earlier reasoning themselves
            yield omission_warning("edits in context_management", str(edit.get("type")))


def _response_format(given: dict[str, Any] | None, at: str) -> ResponseFormat | None:
    if given is None:
        return None
    if given.get("type") != "json_schema":
        raise invalid(f"{at}.type", 'must be "json_schema"')
    schema = given.get("schema")
    if not isinstance(schema, dict):
        raise invalid(f"{at}.schema", "must be a JSON Schema")
    return ResponseFormat("schema", schema or ANY_OBJECT, f"{at}.schema")


def count_message_tokens(conversation: Conversation, model: LoadedModel, media: LoadedMedia = NO_MEDIA) -> Json:
    """Return the reply of ``POST /v1/messages/count_tokens``."""
    return {"input_tokens": render(conversation, model).count(model, media)}


MESSAGES = Dialect(parse_messages, anthropic_error_event, PING)


_SEARCH = "tool_search_tool"


class ToolsetParam(Body):
    configs: dict[str, ToolConfig | None] = Field(default_factory=dict)


class MessageTools(ToolReader):
    """Parses ``tools`` of a body, and tool definitions in its messages."""

    def define(self, given: object, path: str) -> str | None:
        """Return the text that defines a tool, None for an unsupported type. Raises `InvalidRequest`."""
        return "".join(self._define(tool) for tool, _, _ in self.read(as_object(given, path), path)) or None

    @property
    def client_searches(self) -> bool:
        """Return whether messages introduce deferred tools. Otherwise a search by Anthropic's servers would."""
        return not any(kind.startswith(_SEARCH) for kind in self.omitted.types)

    def read(self, entry: dict[str, Any], path: str) -> Iterator[ReadTool]:
        kind, row = entry.get("type"), anthropic_type(entry)
        if not isinstance(kind, str | None):
            raise wrong_type(f"{path}.type", "a string", kind)
        if kind == TOOLSET and self._servers:  # `read_mcp` reads it
            return
        if kind is not None and kind in TOOLSETS:
            yield from self._toolset(entry, TOOLSETS[kind], path)
        elif kind is not None and kind != "custom" and row is None:
            self.omit(kind, entry.get("name"))
        else:
            tool = _function(entry, path) if row is None else _typed_tool(entry, row, path)
            self.names[tool.name] = ClientName(tool.name)
            yield tool, f"{path}.name", entry.get("defer_loading") is True

    def _toolset(self, given: Mapping[str, Any], toolset: Toolset, path: str) -> Iterator[ReadTool]:
        configs, at = parse(ToolsetParam, given, path).configs, f"{path}.configs"
        for name in configs:
            if name not in toolset.functions:
                raise invalid(f"{at}.{short(name)}", "the toolset has no such tool")
        for name, (description, parameters) in toolset.functions.items():
            config = configs.get(name) or ToolConfig()
            if config.enabled is False or (config.enabled is None and name in toolset.disabled):
                continue
            function = model_name(name, toolset.name)
            self.names[function] = ClientName(name, toolset.name)
            tool = Tool(function, description, parameters, at=f"{path}.type")
            yield tool, f"{path}.name", config.defer_loading is True


def _function(given: Mapping[str, Any], path: str) -> Tool:
    name, description = name_and_description(given, path)
    schema: Any = given.get("input_schema")
    if not isinstance(schema, dict):
        raise wrong_type(f"{path}.input_schema", "a JSON Schema object", schema)
    return Tool(name, description, schema or NO_PARAMETERS, is_strict(given, path), f"{path}.input_schema")


def _typed_tool(given: Mapping[str, Any], row: ToolType, path: str) -> Tool:
    name, _ = name_and_description({"name": row.name, **given}, path)
    width, height = given.get("display_width_px"), given.get("display_height_px")
    size = f" It is {width} pixels wide and {height} pixels high." if isinstance(width, int) else ""
    return Tool(name, row.description + size, row.parameters, is_strict(given, path), f"{path}.type")


Block = dict[str, Any]
_SHOWN_CHARS = 40
_DEFAULT_TYPE = "image/jpeg"  # llama-server's
_ROLES = ("user", "assistant", "system")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
"""Types of reasoning blocks, and their fields with the encrypted text."""
_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:\s*\w+=[^;\s]*;)+")
_SESSION_FIELDS = re.compile(r"(?<=\scch=).{5}(?=;)|(?<=\scc_version=)(\d+\.\d+\.\d+)\.\w+(?=;)")


def read_conversation(
    system: object,
    messages: object,
    warnings: list[str],
    tools: MessageTools,
    cipher: ReasoningCipher = NO_CIPHER,
) -> list[Message]:
    """Return the messages, the system prompt first.

    Adds a warning for dropped content to `warnings`, and introduced tools to `tools`. `cipher` decrypts reasoning. A
    message without blocks and an empty system prompt are dropped. There may be no message at all, as in llama-server.
    Raises `InvalidRequest` with a path such as ``messages.0.content.1.text``.
    """
    if messages is None:
        raise invalid("messages", "is required")
    messages = as_array(messages, "messages")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"must have at most {MAX_MESSAGES} messages")
    reader, text = _Reader(warnings, tools, cipher), ""
    for block, path in _blocks("" if system is None else system, "system"):
        if block["type"] == "text":
            text += normalized_system(string_of(block, "text", path))
        else:
            reader.skip(block["type"])
    if text:
        reader.messages.append(Message("system", text))
    for index, message in enumerate(messages):
        reader.read(message, f"messages.{index}")
    return reader.messages


def normalized_system(text: str) -> str:
    """Return `text` with constants in Claude Code's leading billing header, so that requests share a prefix.

    In ``x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli; cch=a5145;``, the end of ``cc_version``
    depends on the first words of a session, and ``cch`` on the whole request. Cached prefixes would end there
    (llama-server replaces only ``cch``: server-chat.cpp, normalize_anthropic_billing_header).
    """
    found = _BILLING_HEADER.match(text)
    if found is None:
        return text
    return _SESSION_FIELDS.sub(lambda part: f"{part[1]}.fff" if part[1] else "fffff", found[0]) + text[found.end() :]


@dataclass(slots=True)
class _Reader:
    warnings: list[str]
    tools: MessageTools
    cipher: ReasoningCipher
    messages: list[Message] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of the tools of earlier calls, by call id
    # The following belong to the current message.
    role: str = ""
    parts: list[Part] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def read(self, given: object, path: str) -> None:
        """Parse one message. Its tool results become messages before it, as templates expect."""
        given = as_object(given, path)
        role, content = given.get("role"), given.get("content")
        if role not in _ROLES:
            raise invalid(f"{path}.role", 'must be "user", "assistant" or "system"')
        self.role = role
        if isinstance(content, str):
            self.messages.append(Message(role, content))
            return
        if content is None and (role == "assistant" or (role == "system" and given.get("output_config"))):
            return  # an assistant's is dropped, as in llama-server
        for block, at in _blocks(content, f"{path}.content"):
            kind = block["type"]
            is_result = kind == "tool_result" or kind.endswith("_tool_result")
            is_reply = kind in _CALLS or kind in _OPAQUE or kind == LISTING
            if (is_reply and role != "assistant") or (is_result and role == "system"):
                raise invalid(f"{at}.type", f"a block of type {kind!r} can't be in a message of the role {role!r}")
            if kind in _CALLS:
                self._call(block, at)
            elif kind in _OPAQUE:
                self._reasoning(block, kind, at)
            elif is_result:
                self._result(block, kind, at)
            elif kind != LISTING:  # `read_mcp` reads it
                self.parts += self._content(block, at)
        self._end()

    def skip(self, kind: str) -> None:
        """Add a warning for a dropped block."""
        self.warnings.append(omission_warning("blocks", kind))

    def _end(self) -> None:
        """Append a message with the content so far."""
        if self.parts or self.calls or self.reasoning:
            content = tuple(self.parts) or ""
            self.messages.append(Message(self.role, content, "".join(self.reasoning), tuple(self.calls)))
        self.parts, self.reasoning, self.calls = [], [], []

    def _reasoning(self, block: Block, kind: str, path: str) -> None:
        """Add encrypted reasoning, or the visible text if this server cannot decrypt it. Raises `InvalidRequest`."""
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
        if block["type"] == "mcp_tool_use" and (server := text_in(block, "server_name")):
            name = function_name(server, name)
        given = {} if block.get("input") is None else block["input"]
        self.names[call_id] = name
        self.calls.append(Call(name, given if isinstance(given, str) else json_text(given), call_id))

    def _result(self, block: Block, kind: str, path: str) -> None:
        call_id = _string_or_none(block, "tool_use_id", path)
        if not isinstance(block.get("is_error"), bool | None):
            raise wrong_type(f"{path}.is_error", "a boolean", block["is_error"])
        if self.role == "assistant":  # the result of a call that the provider's server executed
            self._end()
        given = block.get("content")
        content: Content = ""
        texts = isinstance(given, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in given)
        if kind == "tool_result" or texts or isinstance(given, str):
            # The texts of blocks are concatenated, as in llama-server.
            blocks = _blocks("" if given is None else given, f"{path}.content")
            content = text_content(_joined(part for block, at in blocks for part in self._content(block, at)))
        elif given is not None:  # the result of a tool of Anthropic's servers
            refuse_deep({f"{path}.content": given})
            content = json_text(_unencrypted(given))
        self.messages.append(Message("tool", content, call_id=call_id, name=self.names.get(call_id, "")))

    def _content(self, block: Block, path: str) -> list[Part]:
        """Return the content of a block. A block without usable content is dropped with a warning.

        Media have paths such as ``messages.0.content.1.image``. From an error with this path, Claude Code detects which
        block to remove before it retries. Raises `InvalidRequest`.
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
                head = filter(None, (text_in(block, name) for name in ("title", "source")))
                texts = [part.text for part in _nested(block, path) if isinstance(part, TextPart)]
                return [TextPart("\n".join([*head, *texts]))]
            case "compaction":  # a summary of earlier turns, possibly encrypted by another server
                return [TextPart(summary)] if (summary := text_in(block, "content")) else []
            case "browser_state":
                return [
                    TextPart(json_text({name: block[name] for name in ("tabs", "state_changes") if block.get(name)}))
                ]
            case "tool_reference" | "tool_addition" | "tool_removal":
                if text := self._tool_change(block, kind, path):
                    return [TextPart(text)]
        self.skip(kind)
        return []

    def _tool_change(self, block: Block, kind: str, path: str) -> str | None:
        """Return the text for a tool that is found, added or removed; None for tools of Anthropic's servers."""
        if kind == "tool_reference":
            return self.tools.refer(string_of(block, "tool_name", path))
        match block.get("tool"):
            case {"type": "tool_reference", "name": str(name)} if kind == "tool_addition":
                return self.tools.refer(name)
            case {"type": "tool_reference", "name": str(name)}:
                return f"[The tool {name} can't be called any more.]\n"
            case {"type": "tool_definition", "definition": definition} if kind == "tool_addition":
                return self.tools.define(definition, f"{path}.tool.definition")
        return None


def _blocks(given: object, path: str) -> Iterable[tuple[Block, str]]:
    """Yield the blocks of ``content`` with their paths; a string is one block. Raises `InvalidRequest`."""
    if isinstance(given, str):
        given = [{"type": "text", "text": given}] if given else []
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array of blocks", given)
    for index, entry in enumerate(given):
        at = f"{path}.{index}"
        block = as_object(entry, at)
        string_of(block, "type", at)
        yield block, at


def _string_or_none(block: Block, name: str, path: str) -> str:
    """Return the string `name` of the block at `path`. Null, by which clients drop ids and reasoning, becomes ""."""
    return "" if block.get(name, block) is None else string_of(block, name, path)


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Join adjacent texts."""
    joined: list[Part] = []
    for plain, same in groupby(parts, lambda part: part.plain if isinstance(part, TextPart) else None):
        if plain is None:
            joined += same
        else:
            joined.append(TextPart("".join(part.text for part in same if isinstance(part, TextPart)), plain))
    return joined


def _unencrypted(value: Any) -> Any:
    """Return a result without members that only Anthropic's servers can decrypt, and without files."""
    if isinstance(value, list):
        return [_unencrypted(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    is_file = value.get("type") == "base64"
    return {
        key: _unencrypted(entry)
        for key, entry in value.items()
        if not key.startswith("encrypted_") and not (is_file and key == "data")
    }


def _image(block: Block, path: str) -> Part:
    source = block.get("source")
    return Media("image", _source_type(source), f"{path}.image", _source(source))


def _document(block: Block, path: str) -> list[Part]:
    """Return a document, whose text is in the block, or whose file must be loaded."""
    title, context = text_in(block, "title"), text_in(block, "context")
    source = as_object(block.get("source"), f"{path}.source")
    start = document_start(title, "text/plain", context)
    match source.get("type"):
        case "text":
            text = string_of(source, "data", f"{path}.source")
            return [TextPart(f"{start}{text}\n{DOCUMENT_END}", plain=True)]
        case "content":
            parts = _nested(source, f"{path}.source")
            if not (title or context or any(isinstance(part, TextPart) for part in parts)):
                return parts  # only images, which need no tags
            lines = [TextPart(f"{part.text}\n", plain=True) if isinstance(part, TextPart) else part for part in parts]
            return _joined([TextPart(start, plain=True), *lines, TextPart(DOCUMENT_END, plain=True)])
    at, kind = f"{path}.document", kind_of_type(source.get("media_type"))
    match source:
        case {"type": "url", "url": str(url)} if url:
            name = file_name(url)
            return [Media("document", title or name, at, MediaUrl(url, name), context=context)]
        case {"type": "base64", "data": str(data)} if kind == "document":
            source_url = MediaUrl(f"data:{text_in(source, 'media_type')};base64,{data}")
            return [Media(kind, title, at, source_url, context=context)]
        case {"type": "file"}:
            return [Media("document", title, at, _source(source), context=context)]
    return [Media(kind, _source_type(source), at, _source(source))]


def _nested(given: Block, path: str) -> list[Part]:
    """Return the texts and images in ``content`` of a document or search result. Raises `InvalidRequest`."""
    parts: list[Part] = []
    for block, at in _blocks(given.get("content"), f"{path}.content"):
        if block["type"] not in ("text", "image"):
            raise invalid(f"{at}.type", 'must be "text" or "image"')
        parts.append(TextPart(string_of(block, "text", at)) if block["type"] == "text" else _image(block, at))
    return parts


def _source(source: Any) -> Source | None:
    """Return the source of a file: base64 data, a URL, or an uploaded file. None for other sources."""
    match source:
        case {"type": "base64", "data": str(data)}:
            return MediaUrl(f"data:{text_in(source, 'media_type') or _DEFAULT_TYPE};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return MediaUrl(url)
        case {"type": "file", "file_id": str(file_id)} if file_id:
            return StoredFile(file_id)
    return None


def _source_type(source: object) -> str:
    """Return the media type of a source, such as ``image/png``, or the type of the source."""
    names = [text_in(source, name) for name in ("media_type", "type")] if isinstance(source, dict) else []
    return next((name[:_SHOWN_CHARS] for name in names if name and name.isprintable()), "")
