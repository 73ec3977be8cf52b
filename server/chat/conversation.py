"""A conversation in no wire format's words: what every format is read into, and what a model is asked with.

::

    Conversation
    ├── messages   Message: role, content (text, or Text and Media parts), reasoning, calls, the call it answers
    ├── tools      Tools: what may be called, and whether something must be
    ├── thinking   Thinking: whether to think, how hard, how long
    └── shape      what an answer must match (`constrain.shape.Shape`)

Values know where they stand in the client's body (``at``), so that whatever is found wrong with them later is named in
the client's own words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from server.errors import InvalidRequest
from server.media.source import Source
from server.structured.grammar.embedded.text_grammar import TextGrammar
from server.structured.lazy import Lazy
from server.structured.response_format import ResponseFormat
from server.templates.continuation import Continued

MediaKind = Literal["image", "audio", "video", "file", "document"]
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part that is text. ``plain``: the tokenizer must find no control tokens in it (a document's text)."""

    text: str
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """A part that is none; ``what`` says more of it, such as its type or name.

    ``source``: the file, or where it is; None for what no model can be shown. Nothing of it is fetched or decoded yet.
    The content of a ``file`` tells which of the other media it is. That of a ``document`` may be text, too; ``what`` is
    its name or title then, and ``context`` what the client says about it. ``spare``: it may be left out if it can't be
    had.
    """

    kind: MediaKind
    what: str = ""
    at: str = ""
    source: Source | None = field(default=None, repr=False)
    spare: bool = False
    context: str = ""

    @property
    def placeholder(self) -> str:
        """What stands in the prompt of a model that can't see it."""
        return self._instead("this model takes none")

    @property
    def lost(self) -> str:
        """What stands in the prompt for one that could not be had."""
        return self._instead("it could not be read")

    def _instead(self, reason: str) -> str:
        return f"[{self.kind}{f' {self.what}' if self.what else ''}: not shown, {reason}]"


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
    """One message. A result has the role ``tool``, and in ``call_id`` and ``name`` what it answers."""

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

    @property
    def empty(self) -> bool:
        """Whether it says nothing at all."""
        return not (self.content or self.reasoning or self.calls)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. ``at``: where its parameters (a JSON Schema) stand in the client's body.

    ``strict``: the client wants calls kept to the schema, or an error. ``text``: what its one parameter, a text, must
    match (OpenAI's custom tools), which is always kept, or an error. ``deferred``: the messages tell of it themselves,
    so that templates are not given it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False
    at: str = "tools"
    text: TextGrammar | None = None
    deferred: bool = False

    @property
    def function(self) -> dict[str, Any]:
        """As templates take it: OpenAI's ``function``."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    @property
    def held(self) -> dict[str, Any]:
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
        """Whether a call may come."""
        return bool(self.tools) and self.choice != "none"

    @property
    def strict(self) -> frozenset[str]:
        """The names of those that must be kept to their schemas."""
        return frozenset(tool.name for tool in self.tools if tool.strict or tool.text is not None)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """What the client says of thoughts; None and "" where it says nothing, so that the model's options hold.

    ``wanted``: whether to think. ``effort``: how hard, in the template's words. ``budget``: most tokens, -1 for any
    number, and ``message``: what ends those that would be longer. ``format``: llama-server's reasoning_format.
    ``switch``: whether they are to be ended from outside.
    """

    wanted: bool | None = None
    effort: str = ""
    budget: int | None = None
    message: str | None = None
    format: str | None = None
    switch: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model is asked, but for sampling and limits.

    ``opens``: whether the prompt opens the assistant's turn; ``continues``: what of the last message it ends with
    (`templates.continuation`); None where the client doesn't say. ``reads_calls``: whether calls are told from text.
    ``warnings``: what of the body has no effect, each a sentence for the client.
    """

    messages: tuple[Message, ...]
    tools: Tools = Tools()
    thinking: ReasoningSettings = ReasoningSettings()
    shape: ResponseFormat | None = None
    lazy: Lazy | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    opens: bool | None = None
    continues: Continued | None = None
    reads_calls: bool = True
    messages_at: str = "messages"
    warnings: tuple[str, ...] = ()

    @property
    def media(self) -> tuple[Media, ...]:
        """All that is no text, in order; ``spare`` is what is not in the newest message of the user."""
        newest = _newest(self.messages)
        return tuple(
            replace(part, spare=message is not newest)
            for message in self.messages
            if not isinstance(message.content, str)
            for part in message.content
            if isinstance(part, Media)
        )


def text_content(parts: Sequence[Part]) -> Content:
    """One text part as its text: templates may write a list otherwise than the same text."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not parts[0].plain:
        return parts[0].text
    return tuple(parts)


def shown_text(part: Part) -> str:
    """A part as text."""
    return part.text if isinstance(part, TextPart) else part.placeholder


def unseen(medium: Media) -> InvalidRequest:
    """The error of one that the model can't be shown (llama-server's words)."""
    hint = "hint: if this is unexpected, you may need to provide the mmproj"
    if medium.source is None:
        hint = "there is no address and no file in it, and no file_id"
    return InvalidRequest(f"{medium.at}: {medium.kind} input is not supported - {hint}", medium.at)


def refuse_unseen(messages: Sequence[Message], shown: Callable[[Media], bool]) -> None:
    """Raise `InvalidRequest` for media in the newest user message that the model can't be `shown`.

    Further back, and in results of tools, a placeholder stands for them: a client can't take back what it has said.
    """
    newest = _newest(messages)
    for part in newest.parts if newest is not None else ():
        if isinstance(part, Media) and not shown(part):
            raise unseen(part)


def _newest(messages: Sequence[Message]) -> Message | None:
    """What the user has said last."""
    return next((message for message in reversed(messages) if message.role == "user"), None)


Mark = Callable[[Part], str | None]
"""What stands in a rendered prompt for a medium or a plain text; None for other text, and media that can't be shown."""


def template_messages(messages: Sequence[Message], mark: Mark = lambda _: None) -> list[dict[str, Any]]:
    """In the form that chat templates take (Hugging Face's, which is OpenAI's), media by their marks."""
    return [_template_message(message, mark) for message in messages]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """In the form that chat templates take, without those that the messages tell of."""
    return [{"type": "function", "function": tool.function} for tool in tools if not tool.deferred]


def _template_message(message: Message, mark: Mark) -> dict[str, Any]:
    given: dict[str, Any] = {"role": message.role, "content": _template_content(message.content, mark)}
    if message.reasoning:
        given["reasoning_content"] = message.reasoning
    if message.name:
        given["name"] = message.name
    if message.call_id:
        given["tool_call_id"] = message.call_id
    if message.calls:
        given["tool_calls"] = [_template_call(call) for call in message.calls]
    return given


def _template_content(content: Content, mark: Mark) -> str | list[dict[str, Any]]:
    """Text, or parts; with a medium among them one text, as in llama-server: new lines between texts, and none beside
    a medium (common/chat.cpp, common_chat_msg::to_json_oaicompat). A document counts as text."""
    if isinstance(content, str):
        return content
    marks = [mark(part) for part in content]
    if not any(marks):
        return [{"type": "text", "text": shown_text(part)} for part in content] or ""
    told = ""
    behind_medium = False
    for part, marked in zip(content, marks, strict=True):
        is_medium = marked is not None and isinstance(part, Media) and part.kind != "document"
        if not is_medium and told and not behind_medium:
            told += "\n"
        told += shown_text(part) if marked is None else marked
        behind_medium = is_medium
    return told


def _template_call(call: Call) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {"id": call.id, **made} if call.id else made
