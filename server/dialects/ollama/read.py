"""``POST /api/chat`` and ``/api/generate``: parses bodies to engine requests.

Fields are Ollama's (github.com/ollama/ollama, api/types.go); ``options`` also accepts all of llama.cpp's sampling
fields. `write` creates the response.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from server.chat.conversation import Conversation, Media, Message, ReasoningSettings, TextPart, refuse_unseen
from server.chat.prepare import Prepared, prepare
from server.chat.prompt import can_show, read_parts
from server.dialects.common import random_id
from server.dialects.completions.prompt import check_token
from server.dialects.fields import INT32_MAX, Body, CountOrAll, Whole, field_error, parse, within
from server.dialects.generation import (
    MAX_TOP_LOGPROBS,
    Generation,
    GenerationFields,
    Logprobs,
    StopField,
    engine_request,
    prepared_request,
)
from server.dialects.known import Fields, fields_of
from server.dialects.native.fim import Gap, fim_tokens, require_fim
from server.dialects.ollama.fields import LOAD_OPTIONS, OLDER_OPTIONS, KeepAlive
from server.dialects.ollama.messages import content_of, read_functions, read_messages
from server.dialects.ollama.models import can_think
from server.dialects.ollama.write import LastLine, OllamaReply, OllamaStream, Reply
from server.dialects.sampling import SamplingFields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import InvalidRequest, NotSupported, short
from server.formats.parsing.reasoning import PlainParser
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.structured.response_format import ANY_OBJECT, ResponseFormat


class Options(SamplingFields, StopField):
    """``options``: Ollama's names for limits, and llama.cpp's sampling fields."""

    num_predict: Annotated[Whole, AfterValidator(within(-2, INT32_MAX))] | None = None
    num_keep: CountOrAll | None = None


class AskBody(Body):
    """The common fields of both endpoints."""

    model: str | None = None
    stream: bool | None = None
    format: Any = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaChatBody(AskBody):
    """The body of ``POST /api/chat``."""

    messages: Any = None
    tools: Any = None


class OllamaGenerateBody(AskBody):
    """The body of ``POST /api/generate``."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[Whole] | None = None
    images: Any = None


_CALL = Fields("type id", function=Fields("name arguments index"))
_MESSAGE = Fields("role content images thinking tool_name name tool_call_id", tool_calls=_CALL)
_FUNCTION = Fields("type", function=Fields("name description parameters strict"))
OPTIONS = fields_of(Options, names=" ".join((*LOAD_OPTIONS, *OLDER_OPTIONS)))
"""The known members of ``options``; `fields.without_effect` reports those without effect."""
CHAT_FIELDS = fields_of(OllamaChatBody, options=OPTIONS, messages=_MESSAGE, tools=_FUNCTION)
GENERATE_FIELDS = fields_of(OllamaGenerateBody, options=OPTIONS)


@dataclass(frozen=True, slots=True)
class ParsedOllama:
    """A validated body. ``conversation`` is None for a raw prompt, and if there is nothing to generate from."""

    body: OllamaChatBody | OllamaGenerateBody
    conversation: Conversation | None
    shape: ResponseFormat | None
    began: float  # seconds of `time.perf_counter`
    raw: Message | None = None
    """A prompt without a template."""

    @property
    def media(self) -> tuple[Media, ...]:
        """Return all media."""
        if self.conversation is not None:
            return self.conversation.media
        return tuple(part for part in self.raw.parts if isinstance(part, Media)) if self.raw is not None else ()

    @property
    def streams(self) -> bool:
        """Return whether to stream, which is Ollama's default."""
        return self.body.stream is not False

    @property
    def loads(self) -> bool:
        """Whether nothing is to be generated: the model is only loaded, or freed."""
        body = self.body
        return self.conversation is None and not (
            isinstance(body, OllamaGenerateBody) and ((self.raw is not None and self.raw.content) or body.suffix)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the fields without effect."""
        return () if self.conversation is None else self.conversation.warnings

    @property
    def reply(self) -> Reply:
        """How the lines of the reply look."""
        return Reply(self.body.model or "", chat=isinstance(self.body, OllamaChatBody))


def read_chat(given: object) -> ParsedOllama:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    began = time.perf_counter()
    body = parse(OllamaChatBody, given)
    messages, shape = tuple(read_messages(body.messages)), _shape(body.format)
    warnings: list[str] = []
    tools = read_functions(body.tools, warnings)
    if not messages:
        return ParsedOllama(body, None, shape, began)
    return ParsedOllama(body, _conversation(body, messages, shape, tools=tools, warnings=tuple(warnings)), shape, began)


def read_generate(given: object) -> ParsedOllama:
    """Like `read_chat`. A prompt is a user message unless it is raw or the prefix of a gap."""
    began = time.perf_counter()
    body = parse(OllamaGenerateBody, given)
    shape = _shape(body.format)
    if body.template:
        reason = "Ollama's templates can't be rendered here; leave it out, or send the whole prompt with raw"
        raise InvalidRequest(f"template: {reason}", "template")
    if body.raw and (body.system or body.context):
        name = "system" if body.system else "context"
        raise InvalidRequest(f"{name}: raw mode does not support template, system, or context", name)
    content = content_of(body.prompt or "", body.images, "images")
    user = Message("user", content)
    if body.suffix and body.images:
        raise InvalidRequest("images: can't be used with a suffix", "images")
    if body.raw or body.suffix or not (body.prompt or body.images):
        return ParsedOllama(body, None, shape, began, user)
    system = (Message("system", body.system),) if body.system else ()
    return ParsedOllama(body, _conversation(body, (*system, user), shape, at="prompt"), shape, began)


def _conversation(
    body: AskBody, messages: tuple[Message, ...], shape: ResponseFormat | None, *, at: str = "messages", **more: Any
) -> Conversation:
    effort = body.think if isinstance(body.think, str) else ""
    thinking = ReasoningSettings(None if body.think is None else bool(body.think), effort)
    return Conversation(messages, thinking=thinking, shape=shape, messages_at=at, **more)


def _shape(given: object) -> ResponseFormat | None:
    if given is None or given == "":
        return None
    if given == "json":
        return ResponseFormat("schema", ANY_OBJECT, "format")
    if not isinstance(given, dict):
        raise InvalidRequest(
            f'format: must be "json" or a valid JSON Schema object, not {short(repr(given))}', "format"
        )
    return ResponseFormat("schema", given or ANY_OBJECT, "format")


def generation(ask: ParsedOllama, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Generation:
    """The request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`."""
    loaded, body = time.perf_counter(), ask.body
    if body.think and not can_think(model.template):
        raise InvalidRequest(f"think: {body.model or model.spec.id!r} does not support thinking", "think")
    prepared = None if ask.conversation is None else prepare(ask.conversation, model, seen)
    request = _raw_request(ask, model, seen) if prepared is None else _request(ask, prepared, model)
    remembers = isinstance(body, OllamaGenerateBody) and not body.raw and not body.suffix
    context = [token for token in request.prompt if token >= 0]  # media can't be sent back
    ending = LastLine(ask.began, loaded, context if remembers else None)
    parser = PlainParser if prepared is None else prepared.output.parser
    writer = OllamaStream if ask.streams else OllamaReply
    return Generation([request], writer(ask.reply.named(model.spec.id), parser, ending))


def _request(ask: ParsedOllama, prepared: Prepared, model: LoadedModel) -> Request:
    context = ask.body.context if isinstance(ask.body, OllamaGenerateBody) else None
    if context:
        for index, token in enumerate(context):
            check_token(model.vocab, token, f"context.{index}")
        tokens = prepared.tokens.tokens
        n_dropped = int(tokens[0] == model.vocab.bos)
        media = tuple(replace(span, start=span.start + len(context) - n_dropped) for span in prepared.tokens.spans)
        prepared = replace(prepared, tokens=MediaPrompt(context + tokens[n_dropped:], media))
    return prepared_request(prepared, _fields(ask.body), model, f"ollama-{random_id()}", _logprobs(ask.body))


def _raw_request(ask: ParsedOllama, model: LoadedModel, seen: Seen) -> Request:
    """Of a prompt that is taken as it is, or of the gap between it and a suffix."""
    body, vocab = ask.body, model.vocab
    assert isinstance(body, OllamaGenerateBody)
    prompt = body.prompt or ""
    if body.suffix:
        try:
            require_fim(vocab)
        except NotSupported as error:
            raise field_error("suffix", error.message) from None
        prefix, suffix = (
            vocab.tokenize(text, add_special=False, parse_special=False) for text in (prompt, body.suffix)
        )
        tokens = MediaPrompt(fim_tokens(vocab, Gap(prefix, suffix), suffix_first=model.spec.spm_infill))
    else:
        said = ask.raw or Message("user")
        refuse_unseen([said], can_show(model))
        parts = [part.text if isinstance(part, TextPart) else part for part in said.parts]
        tokens = read_parts(parts, model, seen)
    shape = ask.shape or model.spec.shape
    return engine_request(
        _fields(body),
        model,
        request_id=f"ollama-{random_id()}",
        prompt=tokens.tokens,
        media=tokens.spans,
        logprobs=_logprobs(body),
        constraint=None if shape is None else shape.constraint(model.grammar),
    )


def _fields(body: AskBody) -> GenerationFields:
    """Sampling and limits under their usual names; all of it is checked already."""
    options = body.options or Options()
    shared: Mapping[str, Any] = {name: getattr(options, name) for name in SamplingFields.model_fields}
    limit = options.num_predict
    return GenerationFields.model_construct(
        **shared,
        stop=options.stop,
        n_keep=options.num_keep,
        n_predict=None if limit is None else max(limit, -1),
        stream=body.stream is not False,
    )


def _logprobs(body: AskBody) -> Logprobs:
    return Logprobs(bool(body.logprobs), (body.top_logprobs or 0) if body.logprobs else 0)
