"""Renders a conversation with the model's chat template and tokenizes it.

While the template runs, each media part is replaced by a random marker (`MediaMarkers`) that clients cannot predict. So
the model's own media marker stays plain text in a message, and a template may handle a media part like any text.

A document becomes its text between tags that contain its name. Only the document and the client's description of it
determine this text, so the next turn of a conversation hits the prefix cache. The tags are plain text (`PlainText`),
like the document itself, so a name can't become a control token.
"""

import html
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from server.chat.conversation import (
    Conversation,
    Message,
    Part,
    TextPart,
    part_text,
    reject_unsupported_media,
    template_messages,
)
from server.engine.media import MediaPrompt
from server.errors import ContextExceeded, InvalidRequest, invalid
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
    """Return the opening tag of a document, with escaped attribute values, and the client's description."""
    values = {key: _SPACES.sub(" ", value).strip() for key, value in (("name", name), ("type", media_type)) if value}
    attributes = "".join(f' {key}="{html.escape(value[:MAX_NAME_CHARS])}"' for key, value in values.items())
    description = f"Context: {context}\n" if context else ""
    return f"<document{attributes}>\n{description}"


def document_parts(medium: Media, document: Document) -> list[str | Bitmap]:
    """Return the parts of the prompt for a loaded document, with its tags."""
    start = document_start(medium.what or document.name, document.media_type, medium.context)
    last = document.parts[-1]
    line_end = "" if isinstance(last, str) and last.endswith("\n") else "\n"
    return [PlainText(start), *document.parts, PlainText(line_end + DOCUMENT_END)]


@dataclass(frozen=True, slots=True)
class MediaMarkers:
    """The markers of one rendering. ``supports``: whether the model supports a media part."""

    supports: Callable[[Media], bool]
    _media: list[Media | PlainText] = field(default_factory=list)
    _secret: str = field(default_factory=lambda: secrets.token_hex(12))

    def mark(self, part: Part) -> str | None:
        """Return the marker for a media part or plain text; None for other text and for unsupported media."""
        if isinstance(part, TextPart):
            if not part.plain:
                return None
            self._media.append(PlainText(part.text))
        elif self.supports(part):
            self._media.append(part)
        else:
            return None
        return f"__media_{self._secret}_{len(self._media) - 1}__"

    def split(self, text: str) -> tuple[str | Media, ...]:
        """Return the non-empty texts and the media of a rendered text, in order."""
        if not self._media:
            return (text,)
        pieces = re.split(rf"__media_{self._secret}_(\d+)__", text)
        parts: list[str | Media] = [self._media[int(piece)] if at % 2 else piece for at, piece in enumerate(pieces)]
        return tuple(part for part in parts if part != "")


def as_text(parts: Sequence[str | Media], marker: str, media: LoadedMedia = NO_MEDIA) -> str:
    """Return the text, with `marker` for each media part, and with the documents in `media`."""
    loaded: list[str | Media | Bitmap] = []
    for part in parts:
        is_document = isinstance(part, Media) and part.kind == "document"
        loaded += _loaded_parts(part, media) if is_document else [part]
    _check_length(loaded)
    return "".join(each if isinstance(each, str) else marker for each in loaded)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt."""

    parts: tuple[str | Media, ...]  # texts and media in order
    generation_prompt: str  # the end of the text, which opens the assistant turn
    chat_format: ChatFormat
    may_reason: bool
    budget: ReasoningBudget
    open_reasoning: str | None = None  # reasoning text at the prompt's end; None if it ends outside of reasoning
    prefilled: str = ""  # the text of the last message if the reply continues it
    opens_turn: bool = True  # whether the prompt ends with the start of an assistant turn

    def count(self, model: LoadedModel, media: LoadedMedia) -> int:
        """Return the number of tokens that `read_parts` would return. Media are counted by their sizes only."""
        parts = _joined_parts(self.parts, media)
        bitmaps = [part for part in parts if isinstance(part, Bitmap)]
        if model.media is None or not bitmaps:
            return len(read_parts(self.parts, model, media).tokens)
        check_shown(bitmaps)
        sizes = [part if isinstance(part, str) else replace(part, data=b"", again=None) for part in parts]
        return model.media.count(sizes, add_special=True, parse_special=True)


def read_parts(
    parts: Sequence[str | Media],
    model: LoadedModel,
    media: LoadedMedia,
    *,
    add_special: bool = True,
    parse_special: bool = True,
    must_fit: bool = False,
) -> MediaPrompt:
    """Return the tokens of texts and media. `media`: the loaded media. Raises `InvalidRequest`, and `ContextExceeded`
    if the prompt `must_fit` the context and its texts certainly do not.
    """
    joined = _joined_parts(parts, media)
    texts = [part for part in joined if isinstance(part, str)]
    if must_fit:
        refuse_too_long(texts, model)
    if model.media is None or len(texts) == len(joined):
        return MediaPrompt(_tokens(texts, model.vocab, add_special=add_special, parse_special=parse_special))
    check_shown([part for part in joined if isinstance(part, Bitmap)])
    return model.media.tokenize(joined, add_special=add_special, parse_special=parse_special)


def refuse_too_long(texts: Iterable[str], model: LoadedModel) -> None:
    """Raise `ContextExceeded` if `texts` have more tokens than the context, however long their tokens are.

    Tokenizing takes up to 120 times the memory of the text, and seconds for 10 MB.
    """
    n_ctx, max_token_bytes = model.engine.n_ctx_seq, model.vocab.max_token_bytes
    n_chars = sum(map(len, texts))  # each has a byte at least
    if max_token_bytes and n_chars > n_ctx * max_token_bytes:
        n = n_chars // max_token_bytes
        message = (
            f"request (more than {n} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        )
        raise ContextExceeded(n, n_ctx, message)


def _joined_parts(parts: Sequence[str | Media], media: LoadedMedia) -> list[str | Bitmap]:
    """Return `parts` with loaded media. Adjacent texts of the same type are joined."""
    joined: list[str | Bitmap] = []
    loaded = [each for part in parts for each in _loaded_parts(part, media)]
    _check_length(loaded)
    for _, same in groupby(loaded, type):
        group = list(same)
        texts = [each for each in group if isinstance(each, str)]
        joined += [type(texts[0])("".join(texts))] if texts else group
    return joined


def _check_length(parts: Sequence[object]) -> None:
    """Raise `InvalidRequest` if the texts are too long for a prompt."""
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
    """Return a function that returns whether the model supports a media part."""
    kinds = set[str]() if model.media is None else {*model.media.kinds, "file"}
    kinds.add("document")
    if "image" in kinds:
        kinds.add("video")
    return lambda medium: medium.source is not None and medium.kind in kinds


def _loaded_parts(part: str | Media, media: LoadedMedia) -> Sequence[str | Bitmap]:
    """Return the text or the bitmaps of a part. A placeholder replaces optional media that could not be loaded."""
    if isinstance(part, str):
        return (part,)
    found = None if part.source is None else media.get(part.source)
    if found is None:
        return (PlainText(part.lost) if part.kind == "document" else part.lost,)
    return document_parts(part, found) if isinstance(found, Document) else found.parts


def render(conversation: Conversation, model: LoadedModel) -> Prompt:
    """Return the prompt. Blocking. Raises `InvalidRequest`, also for an error that the template raises."""
    tools, reasoning = conversation.tools, conversation.reasoning
    markers, chat_format = MediaMarkers(can_show(model)), model.template.chat_format(tools=bool(tools.tools))
    system = model.spec.chat.system_prompt if conversation.default_system else ""
    if system and all(message.role not in ("system", "developer") for message in conversation.messages):
        conversation = replace(conversation, messages=(Message("system", system), *conversation.messages))
    messages, continued = conversation.messages, _continued(conversation, chat_format, model)
    prefilled = ""
    if continued:
        # Parts are joined with empty lines (llama.cpp common/chat.cpp, render_content).
        parts = messages[-1].parts
        content = "\n\n".join(markers.mark(part) or part_text(part) for part in parts)
        messages = (*messages[:-1], replace(messages[-1], content=content))
        if continued in (True, "content"):
            prefilled = "\n\n".join(part.text for part in parts if isinstance(part, TextPart))
    budget = model.spec.chat.allowance(reasoning.budget, reasoning.message)
    may_reason = _may_reason(conversation, budget, chat_format, model)
    kwargs = dict(conversation.template_kwargs)
    if reasoning.effort and reasoning.effort != "none":
        kwargs["reasoning_effort"] = reasoning.effort
    # Tools are rendered even if none may be called (as in llama-server), unless the template does not support tools.
    renders_tools = tools.callable or model.template.supports_tools
    offered = [tool for tool in tools.tools if renders_tools and not tool.deferred]
    reject_unsupported_media(conversation.messages, markers.supports)
    try:
        rendered = model.template.render(
            template_messages(messages, markers.mark),
            tools=[{"type": "function", "function": each.function} for each in offered],
            add_generation_prompt=conversation.add_generation_prompt is not False,
            continue_final_message=continued,
            enable_thinking=may_reason,
            kwargs=kwargs,
        )
    except InvalidRequest as error:
        if (error.param or "").partition(".")[0] != "messages" or conversation.messages_at == "messages":
            raise
        reason = error.message.partition(": ")[2] or error.message
        raise invalid(conversation.messages_at, reason) from error
    marker = "" if model.media is None else model.media.marker
    return Prompt(
        markers.split(rendered.text),
        as_text(markers.split(rendered.generation_prompt), marker),
        chat_format,
        may_reason,
        budget,
        open_reasoning(rendered.generation_prompt, chat_format.reasoning_tags),
        prefilled,
        opens_turn=conversation.add_generation_prompt is not False and not continued,
    )


def _continued(conversation: Conversation, chat_format: ChatFormat, model: LoadedModel) -> Continued:
    """Return which part of the last message the reply continues.

    This is the requested part or, as in llama-server, an assistant message at the end. Unlike llama-server, it accepts
    a conversation that ends with a tool call, with two assistant messages, or with reasoning that this model can't
    continue. Clients send such messages back.
    """
    requested, messages = conversation.continue_final_message, conversation.messages
    if requested and conversation.add_generation_prompt:
        raise InvalidRequest(
            "Cannot set both add_generation_prompt and continue_final_message to true.", "continue_final_message"
        )
    if not messages or messages[-1].role != "assistant":
        if requested:
            raise invalid("continue_final_message", "the last message must be the assistant's")
        return False
    if not requested:
        last = messages[-1]
        can_continue = not last.calls and bool(last.content or not last.reasoning or chat_format.separates_reasoning)
        return model.spec.chat.prefill_assistant and can_continue
    if messages[-1].calls:
        at = conversation.messages_at
        raise InvalidRequest("Cannot continue an assistant message that contains tool calls.", at)
    return requested


def _may_reason(
    conversation: Conversation, budget: ReasoningBudget, chat_format: ChatFormat, model: LoadedModel
) -> bool:
    """Return whether the model may reason.

    If the client did not set it, llama-server's rule applies: chat_template_kwargs decide. Without them, the model may
    reason if the template has an end tag, because only then can the parser separate reasoning from the reply
    (tools/server/server-context.cpp; common/chat-diff-analyzer.cpp, analyze_reasoning).
    """
    reasoning, options = conversation.reasoning, model.spec.chat
    if reasoning.effort == "none" or budget.budget == 0:
        return False
    if reasoning.enabled is not None:
        return reasoning.enabled
    configured = options.template_kwargs.get("enable_thinking")
    if isinstance(configured, bool):
        return configured
    return options.reasoning == "on" or (options.reasoning == "auto" and chat_format.has_reasoning_tags)
