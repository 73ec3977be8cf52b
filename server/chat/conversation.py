"""The dialect-neutral conversation: every dialect parses its bodies into one, and prompts are built from it.

    Conversation
    ├── messages            Message: role, content (text, or text and media parts), reasoning, tool calls, tool call id
    ├── tools               Tools: the functions, and whether a call is required
    ├── reasoning           ReasoningSettings: whether to reason, effort, token budget
    └── response_format     the format that the reply must match (`structured.response_format`)

Values store their path in the client's body (``at``), so that errors that are detected later name the client's field.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from server.errors import InvalidRequest, invalid
from server.media.source import Media
from server.structured.lazy import Lazy
from server.structured.response_format import ResponseFormat
from server.structured.text_grammar import TextGrammar
from server.templates.continuation import Continued

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part that is text. ``plain``: the tokenizer must find no control tokens in it (a document's text)."""

    text: str
    plain: bool = False


Part = TextPart | Media
Content = str | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments``: JSON text as it was generated, possibly truncated; ``id``: "" for none."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. A tool result has the role ``tool``; ``call_id`` and ``name`` identify the call."""

    role: str
    content: Content = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the content as parts; empty text has none."""
        if isinstance(self.content, str):
            return (TextPart(self.content),) if self.content else ()
        return self.content

    @property
    def text(self) -> str:
        """Return the content as one text, with newlines between parts, as in llama-server."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(map(part_text, self.content))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function tool."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False  # the request fails if the schema can't be enforced
    at: str = "tools"  # path of its parameters (a JSON Schema) in the client's body
    text: TextGrammar | None = None  # of a custom tool: the grammar of its only parameter, always enforced
    deferred: bool = False  # defined in the messages instead of by the template

    @property
    def function(self) -> dict[str, Any]:
        """Return OpenAI's ``function``, the format of chat templates."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    @property
    def grammar_function(self) -> dict[str, Any]:
        """Return the format for grammars of calls (`formats.grammar.call_grammar.Function`)."""
        return self.function if self.text is None else {**self.function, "text": self.text}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request, and whether the model may, must or must not call one. ``name``: the required one."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    name: str = ""
    parallel: bool | None = None  # None = if the template supports it

    @property
    def callable(self) -> bool:
        """Return whether the model may call a tool."""
        return bool(self.tools) and self.choice != "none"

    @property
    def strict(self) -> frozenset[str]:
        """Return the names of the tools whose schemas or grammars must be enforced."""
        return frozenset(tool.name for tool in self.tools if tool.strict or tool.text is not None)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """The client's reasoning settings. For None and "", the model's options apply."""

    enabled: bool | None = None
    effort: str = ""  # the template's name of a level
    budget: int | None = None  # token limit, -1 for unlimited
    message: str | None = None  # inserted before the end of reasoning at the limit
    format: str | None = None  # llama-server's reasoning_format
    switch: bool = False  # another request may end the reasoning


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with its tools, reasoning settings and response format."""

    messages: tuple[Message, ...]
    tools: Tools = Tools()
    reasoning: ReasoningSettings = ReasoningSettings()
    response_format: ResponseFormat | None = None
    lazy: Lazy | None = None  # triggers of a lazy grammar
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None  # None if the client did not set it
    continue_final_message: Continued | None = None  # the part of the last message that the reply continues
    parse_tool_calls: bool = True
    default_system: bool = True  # without a system message, the model's system prompt applies
    messages_at: str = "messages"

    @property
    def media(self) -> tuple[Media, ...]:
        """Return all media in order. ``optional`` is set on media that are not in the newest user message."""
        newest = _newest(self.messages)
        return tuple(
            replace(part, optional=message is not newest)
            for message in self.messages
            if not isinstance(message.content, str)
            for part in message.content
            if isinstance(part, Media)
        )


def text_content(parts: Sequence[Part]) -> Content:
    """Return a single text part as a string, because templates may render a list of one text differently."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not parts[0].plain:
        return parts[0].text
    return tuple(parts)


def part_text(part: Part) -> str:
    """Return the text of a part."""
    return part.text if isinstance(part, TextPart) else part.placeholder


def unsupported_media(medium: Media) -> InvalidRequest:
    """Return llama-server's error for a media part that the model does not support."""
    hint = "hint: if this is unexpected, you may need to provide the mmproj"
    if medium.source is None:
        hint = "there is no address and no file in it, and no file_id"
    return invalid(medium.at, f"{medium.kind} input is not supported - {hint}")


def reject_unsupported_media(messages: Sequence[Message], supports: Callable[[Media], bool]) -> None:
    """Raise `InvalidRequest` if the newest user message has media that the model does not support.

    ``supports``: whether the model supports a media part. In older messages and tool results, a placeholder replaces
    unsupported media, because clients send these messages again unchanged.
    """
    newest = _newest(messages)
    for part in newest.parts if newest is not None else ():
        if isinstance(part, Media) and not supports(part):
            raise unsupported_media(part)


def _newest(messages: Sequence[Message]) -> Message | None:
    return next((message for message in reversed(messages) if message.role == "user"), None)


Mark = Callable[[Part], str | None]
"""Returns the marker that replaces a media part or plain text while a template runs; None for other text and for
unsupported media.
"""


def template_messages(messages: Sequence[Message], mark: Mark = lambda _: None) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's format, for chat templates, with markers instead of media."""
    return [_template_message(message, mark) for message in messages]


def _template_message(message: Message, mark: Mark) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": _template_content(message.content, mark)}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.name:
        fields["name"] = message.name
    if message.call_id:
        fields["tool_call_id"] = message.call_id
    if message.calls:
        fields["tool_calls"] = [
            {
                **({"id": call.id} if call.id else {}),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return fields


def _template_content(content: Content, mark: Mark) -> str | list[dict[str, Any]]:
    """Return the content as a string or as a list of text parts.

    Content with media is one string, as in llama-server: texts are separated by newlines, with none next to a media
    marker (common/chat.cpp, common_chat_msg::to_json_oaicompat). A document counts as text.
    """
    if isinstance(content, str):
        return content
    markers = [mark(part) for part in content]
    if not any(markers):
        return [{"type": "text", "text": part_text(part)} for part in content] or ""
    text = ""
    after_medium = False
    for part, marker in zip(content, markers, strict=True):
        is_medium = marker is not None and isinstance(part, Media) and part.kind != "document"
        if not is_medium and text and not after_medium:
            text += "\n"
        text += part_text(part) if marker is None else marker
        after_medium = is_medium
    return text
