"""A conversation that is independent of the API dialect. Every dialect is parsed into it, and prompts are built from
it.

    Conversation
    ├── messages    Message: role, content (text, or Text and Media parts), reasoning, tool calls, tool call id
    ├── tools       Tools: the functions, and whether a call is required
    ├── thinking    ReasoningSettings: whether to reason, effort, token budget
    └── shape       the format that the reply must match (`structured.response_format`)

Values store their path in the client's body (``at``), so that an error that is found later names the client's own
field.
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
    """A call of a tool. ``arguments``: JSON text as it was written, which may be cut off; ``id`` "" for none."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A tool result has the role ``tool``; ``call_id`` and ``name`` identify the call."""

    role: str
    content: Content = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts; an empty text has none."""
        if isinstance(self.content, str):
            return (TextPart(self.content),) if self.content else ()
        return self.content

    @property
    def text(self) -> str:
        """The content as one text; parts are joined by new lines, as llama-server does."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(map(shown_text, self.content))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function tool."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False  # calls must match the schema; otherwise the request fails
    at: str = "tools"  # path of its parameters (a JSON Schema) in the client's body
    text: TextGrammar | None = None  # the format of the only parameter, a text (a custom tool), always enforced
    deferred: bool = False  # the messages define this tool, so that templates don't receive it

    @property
    def function(self) -> dict[str, Any]:
        """As templates take it: OpenAI's ``function``."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    @property
    def grammar_function(self) -> dict[str, Any]:
        """As grammars of calls take it (`formats.grammar.call_grammar.Function`)."""
        return self.function if self.text is None else {**self.function, "text": self.text}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request, and whether the model may, must or must not call one (or the one `name`)."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    name: str = ""
    parallel: bool | None = None  # None = what the template can do

    @property
    def callable(self) -> bool:
        """Return whether the model may call a tool."""
        return bool(self.tools) and self.choice != "none"

    @property
    def strict(self) -> frozenset[str]:
        """The names of those that must be kept to their schemas."""
        return frozenset(tool.name for tool in self.tools if tool.strict or tool.text is not None)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """The client's reasoning settings. None and "" mean that the model's options apply."""

    wanted: bool | None = None
    effort: str = ""  # as the template names it
    budget: int | None = None  # token limit, -1 for unlimited
    message: str | None = None  # ends reasoning at the limit
    format: str | None = None  # llama-server's reasoning_format
    switch: bool = False  # another request may end the reasoning


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request to a model, without sampling parameters and limits."""

    messages: tuple[Message, ...]
    tools: Tools = Tools()
    thinking: ReasoningSettings = ReasoningSettings()
    shape: ResponseFormat | None = None
    lazy: Lazy | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    opens: bool | None = None  # the prompt ends with the start of an assistant turn; None: the client doesn't say
    continues: Continued | None = None  # the part of the last message that the prompt continues
    reads_calls: bool = True  # tool calls are parsed
    default_system: bool = True  # the model's system prompt applies if there is none
    messages_at: str = "messages"

    @property
    def media(self) -> tuple[Media, ...]:
        """Return all media in order. ``spare`` is set on media that are not in the newest user message."""
        newest = _newest(self.messages)
        return tuple(
            replace(part, spare=message is not newest)
            for message in self.messages
            if not isinstance(message.content, str)
            for part in message.content
            if isinstance(part, Media)
        )


def text_content(parts: Sequence[Part]) -> Content:
    """Return one text part as its text: templates may write a list otherwise than the same text."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not parts[0].plain:
        return parts[0].text
    return tuple(parts)


def shown_text(part: Part) -> str:
    """Return the text of a part."""
    return part.text if isinstance(part, TextPart) else part.placeholder


def unseen(medium: Media) -> InvalidRequest:
    """Return the error for a medium that the model does not accept (llama-server's text)."""
    hint = "hint: if this is unexpected, you may need to provide the mmproj"
    if medium.source is None:
        hint = "there is no address and no file in it, and no file_id"
    return invalid(medium.at, f"{medium.kind} input is not supported - {hint}")


def refuse_unseen(messages: Sequence[Message], shown: Callable[[Media], bool]) -> None:
    """Raise `InvalidRequest` if the newest user message has media that the model can't process.

    ``shown``: media types that the model can process. In older messages and in tool results, a placeholder replaces
    such media, because a client can't change messages that it already sent.
    """
    newest = _newest(messages)
    for part in newest.parts if newest is not None else ():
        if isinstance(part, Media) and not shown(part):
            raise unseen(part)


def _newest(messages: Sequence[Message]) -> Message | None:
    """Return the newest user message."""
    return next((message for message in reversed(messages) if message.role == "user"), None)


Mark = Callable[[Part], str | None]
"""Returns the marker for a media part or a plain text in a rendered prompt; None for other text and for media that
can't be shown.
"""


def template_messages(messages: Sequence[Message], mark: Mark = lambda _: None) -> list[dict[str, Any]]:
    """Return the messages in the format of chat templates (OpenAI's), with marks in place of media."""
    return [_template_message(message, mark) for message in messages]


def _template_message(message: Message, mark: Mark) -> dict[str, Any]:
    given: dict[str, Any] = {"role": message.role, "content": _template_content(message.content, mark)}
    if message.reasoning:
        given["reasoning_content"] = message.reasoning
    if message.name:
        given["name"] = message.name
    if message.call_id:
        given["tool_call_id"] = message.call_id
    if message.calls:
        given["tool_calls"] = [
            {
                **({"id": call.id} if call.id else {}),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return given


def _template_content(content: Content, mark: Mark) -> str | list[dict[str, Any]]:
    """Return the content as a string or as a list of parts.

    If it has media, return one string, as llama-server does: texts are separated by newlines, with none next to a
    media marker (common/chat.cpp, common_chat_msg::to_json_oaicompat). A document counts as text.
    """
    if isinstance(content, str):
        return content
    marks = [mark(part) for part in content]
    if not any(marks):
        return [{"type": "text", "text": shown_text(part)} for part in content] or ""
    text = ""
    after_medium = False
    for part, marked in zip(content, marks, strict=True):
        is_medium = marked is not None and isinstance(part, Media) and part.kind != "document"
        if not is_medium and text and not after_medium:
            text += "\n"
        text += shown_text(part) if marked is None else marked
        after_medium = is_medium
    return text
