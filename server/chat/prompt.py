"""Renders a conversation with the model's chat template and tokenizes it.

While the template runs, each media part is a random marker (`Marks`) that a client cannot predict. So a user who writes
the model's media marker has written plain text, and a template may treat a media part like any other text.

A document is its text between tags that contain its name. The format depends only on the document and the client's
description of it, so the next turn of a conversation hits the cache. The tags are plain text (`PlainText`), like the
document itself: a name can't become a control token.
"""

import html
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from server.chat.conversation import (
    Conversation,
    Message,
    Part,
    TextPart,
    refuse_unseen,
    shown_text,
    template_messages,
)
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest, invalid
from server.formats.chat_format import ChatFormat
from server.formats.parsing.reasoning import open_reasoning
from server.media.bitmap import Bitmap, Document
from server.media.loader import check_shown
from server.media.source import NO_MEDIA, LoadedMedia, Media
from server.pool.model import LoadedModel
from server.structured.reasoning_end import ReasoningBudget
from server.templates.continuation import Continued
from server.vocab import PlainText, Vocab

MAX_NAME_CHARS = 255
_SPACES = re.compile(r"[\s\x00-\x1f\x7f]+")
DOCUMENT_END = "</document>"
MAX_TEXT_CHARS = 64 << 20  # of a prompt with its documents, which parts may repeat


def document_start(name: str, media_type: str, context: str = "") -> str:
    """Return the opening tag of a document. All attribute values are escaped."""
    shown = {key: _SPACES.sub(" ", value).strip() for key, value in (("name", name), ("type", media_type)) if value}
    attributes = "".join(f' {key}="{html.escape(value[:MAX_NAME_CHARS])}"' for key, value in shown.items())
    about = f"Context: {context}\n" if context else ""
    return f"<document{attributes}>\n{about}"


def framed(medium: Media, found: Document) -> list[str | Bitmap]:
    """Return the parts of the prompt for a document that was read."""
    start = document_start(medium.what or found.name, found.media_type, medium.context)
    last = found.parts[-1]
    line_end = "" if isinstance(last, str) and last.endswith("\n") else "\n"
    return [PlainText(start), *found.parts, PlainText(line_end + DOCUMENT_END)]


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one rendering. ``shown``: whether the model can be shown a medium."""

    shown: Callable[[Media], bool]
    _media: list[Media | PlainText] = field(default_factory=list)
    _secret: str = field(default_factory=lambda: secrets.token_hex(12))

    def mark(self, part: Part) -> str | None:
        """Return the marker for a media part or a plain text; None for other text and for media that can't be shown."""
        if isinstance(part, TextPart):
            if not part.plain:
                return None
            self._media.append(PlainText(part.text))
        elif self.shown(part):
            self._media.append(part)
        else:
            return None
        return f"__media_{self._secret}_{len(self._media) - 1}__"

    def cut(self, text: str) -> tuple[str | Media, ...]:
        """Texts and media in turn, without texts that are empty; nothing but the text where no medium is in it."""
        if not self._media:
            return (text,)
        pieces = re.split(rf"__media_{self._secret}_(\d+)__", text)
        parts: list[str | Media] = [self._media[int(piece)] if at % 2 else piece for at, piece in enumerate(pieces)]
        return tuple(part for part in parts if part != "")


def as_text(parts: Sequence[str | Media], marker: str, media: LoadedMedia = NO_MEDIA) -> str:
    """Return the text with `marker` for each medium, and the documents that `media` has."""
    found: list[str | Media | Bitmap] = []
    for part in parts:
        is_document = isinstance(part, Media) and part.kind == "document"
        found += _shown_parts(part, media) if is_document else [part]
    _check_text(found)
    return "".join(each if isinstance(each, str) else marker for each in found)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt."""

    parts: tuple[str | Media, ...]  # its text in pieces with the media between them
    generation_prompt: str  # the part of the text that opens the assistant turn
    chat_format: ChatFormat
    thinks: bool  # whether the model may reason
    allowed: ReasoningBudget
    open_reasoning: str | None = None  # reasoning text at the prompt's end; None if it ends outside of reasoning
    prefilled: str = ""  # the content of the last message, which the prompt continues
    opens: bool = True  # whether the prompt opens the assistant turn

    def count(self, model: LoadedModel, media: LoadedMedia) -> int:
        """Return the number of its tokens, as `read_parts` finds them. Computes media from their sizes only."""
        given = _given(self.parts, media)
        bitmaps = [part for part in given if isinstance(part, Bitmap)]
        if model.media is None or not bitmaps:
            return len(read_parts(self.parts, model, media).tokens)
        check_shown(bitmaps)
        sizes = [part if isinstance(part, str) else replace(part, data=b"", again=None) for part in given]
        return model.media.count(sizes, add_special=True, parse_special=True)


def read_parts(
    parts: Sequence[str | Media],
    model: LoadedModel,
    media: LoadedMedia,
    *,
    add_special: bool = True,
    parse_special: bool = True,
) -> MediaPrompt:
    """Return the tokens of texts and of the media between them, which `media` has. Raises `InvalidRequest`."""
    given = _given(parts, media)
    texts = [part for part in given if isinstance(part, str)]
    if model.media is None or len(texts) == len(given):
        return MediaPrompt(_tokens(texts, model.vocab, add_special=add_special, parse_special=parse_special))
    check_shown([part for part in given if isinstance(part, Bitmap)])
    return model.media.tokenize(given, add_special=add_special, parse_special=parse_special)


def _given(parts: Sequence[str | Media], media: LoadedMedia) -> list[str | Bitmap]:
    """Return `parts` as they are shown to the model. Adjacent texts of the same type are joined."""
    found: list[str | Bitmap] = []
    shown = [each for part in parts for each in _shown_parts(part, media)]
    _check_text(shown)
    for _, same in groupby(shown, type):
        group = list(same)
        texts = [each for each in group if isinstance(each, str)]
        found += [type(texts[0])("".join(texts))] if texts else group
    return found


def _check_text(parts: Sequence[object]) -> None:
    """Raise `InvalidRequest` for more text than a prompt may have."""
    if sum(len(part) for part in parts if isinstance(part, str)) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"a prompt with its documents may have at most {MAX_TEXT_CHARS} characters")


def _tokens(texts: Sequence[str], vocab: Vocab, *, add_special: bool, parse_special: bool) -> list[int]:
    if len(texts) < 2 and not any(isinstance(text, PlainText) for text in texts):
        return vocab.tokenize("".join(texts), add_special=add_special, parse_special=parse_special)
    tokens = [vocab.bos] if add_special and vocab.add_bos else []
    for text in texts:
        special = parse_special and not isinstance(text, PlainText)
        tokens += vocab.tokenize(text, add_special=False, parse_special=special)
    return [*tokens, vocab.eos] if add_special and vocab.add_eos else tokens


def can_show(model: LoadedModel) -> Callable[[Media], bool]:
    """Return a function that tells whether the model accepts a medium."""
    kinds = set[str]() if model.media is None else {*model.media.kinds, "file"}
    kinds.add("document")
    if "image" in kinds:
        kinds.add("video")
    return lambda medium: medium.source is not None and medium.kind in kinds


def _shown_parts(part: str | Media, media: LoadedMedia) -> Sequence[str | Bitmap]:
    """Return the text that replaces an optional medium that could not be loaded. For others that is an error."""
    if isinstance(part, str):
        return (part,)
    found = None if part.source is None else media.get(part.source)
    if found is None:
        return (PlainText(part.lost) if part.kind == "document" else part.lost,)
    return framed(part, found) if isinstance(found, Document) else found.parts


def render(conversation: Conversation, model: LoadedModel) -> Prompt:
    """Return the prompt. Blocking. Raises `InvalidRequest`, also with the template's own complaint."""
    marks, chat_format = Marks(can_show(model)), model.template.chat_format(tools=bool(conversation.tools.tools))
    tools, reasoning = conversation.tools, conversation.thinking
    system = model.spec.chat.system_prompt if conversation.default_system else ""
    if system and all(message.role not in ("system", "developer") for message in conversation.messages):
        conversation = replace(conversation, messages=(Message("system", system), *conversation.messages))
    messages, continued = conversation.messages, _continued(conversation, chat_format, model)
    if continued:
        # Parts are joined with empty lines (llama.cpp common/chat.cpp, render_content).
        messages = (*messages[:-1], replace(messages[-1], content="\n\n".join(map(shown_text, messages[-1].parts))))
    allowed = model.spec.chat.allowance(reasoning.budget, reasoning.message)
    thinks = _thinks(conversation, allowed, chat_format, model)
    kwargs = dict(conversation.template_kwargs)
    if reasoning.effort and reasoning.effort != "none":
        kwargs["reasoning_effort"] = reasoning.effort
    # Tools are shown also where none may be called (as llama-server does), unless the template can't show any.
    shown = tools.callable or model.template.supports_tools
    offered = [tool for tool in tools.tools if shown and not tool.deferred]
    refuse_unseen(conversation.messages, marks.shown)
    try:
        rendered = model.template.render(
            template_messages(messages, marks.mark),
            tools=[{"type": "function", "function": each.function} for each in offered],
            add_generation_prompt=conversation.opens is not False,
            continue_final_message=continued,
            enable_thinking=thinks,
            kwargs=kwargs,
        )
    except InvalidRequest as error:
        if (error.param or "").partition(".")[0] != "messages" or conversation.messages_at == "messages":
            raise
        at, said = conversation.messages_at, error.message
        raise invalid(at, said.partition(": ")[2] or said) from error
    marker = "" if model.media is None else model.media.marker
    return Prompt(
        marks.cut(rendered.text),
        as_text(marks.cut(rendered.generation_prompt), marker),
        chat_format,
        thinks,
        allowed,
        open_reasoning(rendered.generation_prompt, chat_format.reasoning_tags),
        messages[-1].text if continued in (True, "content") else "",
        opens=conversation.opens is not False and not continued,
    )


def _continued(conversation: Conversation, chat_format: ChatFormat, model: LoadedModel) -> Continued:
    """Return which part of the last message the prompt continues: the requested part or, as in llama-server, the
    assistant message at the end.

    Unlike llama-server, this accepts a conversation that ends with a tool call, with two assistant messages, or with
    reasoning that this model can't continue. Clients send back what a model generated.
    """
    wanted, messages = conversation.continues, conversation.messages
    if wanted and conversation.opens:
        raise InvalidRequest(
            "Cannot set both add_generation_prompt and continue_final_message to true.", "continue_final_message"
        )
    if not messages or messages[-1].role != "assistant":
        if wanted:
            raise invalid("continue_final_message", "the last message must be the assistant's")
        return False
    if not wanted:
        last = messages[-1]
        goes_on = not last.calls and bool(last.content or not last.reasoning or chat_format.separates_reasoning)
        return model.spec.chat.prefill_assistant and goes_on
    if messages[-1].calls:
        at = conversation.messages_at
        raise InvalidRequest("Cannot continue an assistant message that contains tool calls.", at)
    return wanted


def _thinks(conversation: Conversation, allowed: ReasoningBudget, chat_format: ChatFormat, model: LoadedModel) -> bool:
    """Return whether the model may reason.

    If the client doesn't specify it, llama-server's rule applies: chat_template_kwargs decide; otherwise yes if the
    template shows how reasoning ends, because only then can reasoning be separated from the reply
    (tools/server/server-context.cpp; common/chat-diff-analyzer.cpp, analyze_reasoning).
    """
    reasoning, options = conversation.thinking, model.spec.chat
    if reasoning.effort == "none" or allowed.budget == 0:
        return False
    if reasoning.wanted is not None:
        return reasoning.wanted
    configured = options.template_kwargs.get("enable_thinking")
    if isinstance(configured, bool):
        return configured
    return options.reasoning == "on" or (options.reasoning == "auto" and chat_format.has_reasoning_tags)
