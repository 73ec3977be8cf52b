"""``POST /api/chat`` and ``/api/generate``: parses bodies to engine requests.

Fields are Ollama's (github.com/ollama/ollama, api/types.go); ``options`` also accepts all of llama.cpp's sampling
fields. `write` creates the response.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from server.chat.assembler import NewParser
from server.chat.conversation import (
    Call,
    Content,
    Conversation,
    Message,
    Part,
    ReasoningSettings,
    TextPart,
    Tools,
    refuse_unseen,
    text_content,
)
from server.chat.prompt import can_show, read_parts
from server.dialects.chat.parse import ChatTools
from server.dialects.common import random_id
from server.dialects.completions.prompt import check_token
from server.dialects.content import link
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.errors import error_line
from server.dialects.fields import (
    INT32_MAX,
    MAX_MAGNITUDE,
    MAX_MESSAGES,
    Body,
    CountOrAll,
    Messages,
    Strings,
    ToolObjects,
    Whole,
    as_array,
    as_object,
    json_text,
    parse,
    text_of,
    within,
    wrong_type,
)
from server.dialects.generation import MAX_TOP_LOGPROBS, ConversationRequest, GenerationFields, Logprobs, Stop
from server.dialects.native.fim import suffix_prompt
from server.dialects.ollama.models import can_think
from server.dialects.ollama.write import OllamaWriter, Reply
from server.dialects.sampling import SamplingFields
from server.dialects.warnings import unused_fields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import invalid, short_json
from server.formats.parsing.stream_parser import plain_parser
from server.media.source import Media
from server.pool.model import LoadedModel
from server.structured.response_format import ANY_OBJECT, ResponseFormat

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[-+]?(?:{_DURATION_PART})+", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?", re.ASCII)
_MAX_CHARS = 64
FOR_EVER = -1.0
MAX_S = 1e3 * MAX_MAGNITUDE  # longer is for ever

_LOAD_OPTIONS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "num_thread", "numa", "low_vram"),
    *("f16_kv", "logits_all", "vocab_only", "embedding_only", "draft_num_predict", "num_gqa", "rope_frequency_base"),
    "rope_frequency_scale",
)
"""Options that Ollama loads a model with; here the settings do, once for all clients."""


def _seconds(given: object) -> object:
    """Seconds out of a number, or of Go's ``1h30m``; below 0 is for ever, as in Ollama."""
    seconds = given
    if isinstance(given, str) and len(given) <= _MAX_CHARS:
        if _NUMBER.fullmatch(given):
            seconds = float(given)
        elif _DURATION.fullmatch(given):
            parts = re.findall(_DURATION_PART, given, re.ASCII)
            seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts) * (-1 if given[0] == "-" else 1)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError('must be a number of seconds, or a duration such as "5m"')
    return FOR_EVER if seconds < 0 or seconds > MAX_S else float(seconds)


KeepAlive = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["5m", 0, -1]}),
]
"""Seconds that the model stays loaded after the request; negative = forever."""


_MAX_WAITING = 256
"""Latest calls among which a result's call is looked for."""
_SEVERAL_TYPES = re.compile(r"\w+(?:, ?\w+)+", re.ASCII)


def _content(text: str, images: object, path: str) -> Content:
    """Return a text with its images, each in base64. Raises `InvalidRequest`."""
    if images is None:
        return text
    if not isinstance(images, list):
        raise wrong_type(path, "an array of images in base64", images)
    for index, image in enumerate(images):
        if not isinstance(image, str):
            raise wrong_type(f"{path}.{index}", "an image in base64", image)
    parts: list[Part] = [Media("image", at=f"{path}.{index}", source=link(image)) for index, image in enumerate(images)]
    return text_content([*parts, TextPart(text)] if text else parts)


def _message(given: object, path: str, waiting: list[Call]) -> Message:
    given = as_object(given, path)
    role = text_of(given, "role", path).lower()
    if not role:
        raise invalid(f"{path}.role", "is required")
    content = _content(text_of(given, "content", path), given.get("images"), f"{path}.images")
    reasoning_text = text_of(given, "thinking", path)
    if role != "tool":
        listed, at, n = given.get("tool_calls"), f"{path}.tool_calls", len(waiting)
        listed = [] if listed is None else as_array(listed, at)
        calls = [_call(call, f"{at}.{index}", f"call_{n + index}") for index, call in enumerate(listed)]
        waiting += calls
        del waiting[:-_MAX_WAITING]
        return Message(role, content, reasoning_text, tuple(calls))
    name = text_of(given, "tool_name", path) or text_of(given, "name", path)
    call_id = text_of(given, "tool_call_id", path)
    # A result is of the call with its id, otherwise the first call of that name, otherwise the first. An id that no
    # call has is as none: litellm leaves ids out of calls, not out of results.
    same = [call for call in waiting if call.id == call_id]
    named = [call for call in waiting if call.name == name]
    for answered in (same or (named if name else waiting))[:1]:
        waiting.remove(answered)
        call_id, name = answered.id, answered.name
    return Message(role, content, reasoning_text, call_id=call_id, name=name)


def _call(given: object, path: str, own_id: str) -> Call:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object", function)
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # OpenAI's way, which clients mix in
        text = arguments
    elif isinstance(arguments, dict | None):
        text = json_text(arguments or {})
    else:
        raise wrong_type(f"{path}.function.arguments", "an object", arguments)
    name = text_of(function, "name", f"{path}.function")
    return Call(name, text, text_of(given, "id", path) or own_id)


def _typed(tool: Any) -> Any:
    """Return a tool whose parameters' types are JSON Schema's; a malformed one as it is. The official client writes
    several types of a parameter as ``integer, string``.
    """
    try:
        function = tool["function"]
        properties = {**function["parameters"]["properties"]}
        for name, schema in properties.items():
            kind = schema.get("type") if isinstance(schema, dict) else None
            if isinstance(kind, str) and _SEVERAL_TYPES.fullmatch(kind):
                properties[name] = {**schema, "type": re.split(", ?", kind)}
    except (KeyError, TypeError, AttributeError):
        return tool
    return {**tool, "function": {**function, "parameters": {**function["parameters"], "properties": properties}}}


class Options(SamplingFields):
    """``options``: Ollama's names for limits, and llama.cpp's sampling fields."""

    without_effect: ClassVar = dict.fromkeys(_LOAD_OPTIONS, (None, "it is an option of the server's models"))
    stop: Stop | None = None
    num_predict: Annotated[Whole, AfterValidator(within(-2, INT32_MAX))] | None = None
    num_keep: CountOrAll | None = None


class AskBody(Body):
    """The common fields of both endpoints."""

    without_effect: ClassVar = {
        "shift": (None, "it is the model's option context_shift"),
        "truncate": (False, "no message is left out, a prompt that does not fit is an error"),
    }
    model: str | None = None
    stream: bool | None = None
    format: Annotated[Any, WithJsonSchema({"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]})] = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaChatBody(AskBody):
    """The body of ``POST /api/chat``."""

    messages: Messages = None
    tools: ToolObjects = None


class OllamaGenerateBody(AskBody):
    """The body of ``POST /api/generate``."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[Whole] | None = None
    images: Strings = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaRequest(ConversationRequest):
    reply: Reply
    began: float  # seconds of `time.perf_counter`
    raw: bool = False  # the only message is the prompt, without a template
    suffix: str = ""  # with one, the prompt is the text before the gap
    context: Sequence[int] = ()  # tokens before the prompt

    @property
    def loads(self) -> bool:
        """Whether nothing is to be generated: the model is only loaded, or freed."""
        return not self.conversation.messages

    def generation(self, context: Context) -> Generation:
        loaded, model = time.perf_counter(), context.model
        reply = self.reply if self.reply.model else replace(self.reply, model=model.spec.id)
        if self.conversation.thinking.wanted and not can_think(model.template):
            raise invalid("think", f"{reply.model!r} does not support thinking")
        request_id = f"ollama-{random_id()}"
        parser: NewParser = plain_parser
        if self.raw:
            request = self._raw_request(context, request_id)
        else:
            output, request = self.prepare(context, request_id, self.conversation)
            request, parser = _after_context(request, self.context, model), output.parser
        has_context = not (self.raw or reply.chat)
        prompt = [token for token in request.prompt if token >= 0] if has_context else None  # media can't be sent back
        return Generation([request], OllamaWriter(reply, parser, began=self.began, loaded=loaded, prompt=prompt))

    def _raw_request(self, context: Context, request_id: str) -> Request:
        """Return the request for a prompt without a template, or for the gap between it and a suffix."""
        (message,), model = self.conversation.messages, context.model
        if self.suffix:
            prefix = model.vocab.tokenize(message.text, add_special=False, parse_special=False)
            tokens = MediaPrompt(suffix_prompt(model, prefix, self.suffix))
        else:
            refuse_unseen([message], can_show(model))
            parts = [part.text if isinstance(part, TextPart) else part for part in message.parts]
            tokens = read_parts(parts, model, context.media)
        shape = self.conversation.shape or model.spec.shape
        constraint = None if shape is None else shape.constraint(model.grammar)
        (request,) = self.requests(context, request_id, [tokens], constraint)
        return request


def parse_chat(given: dict[str, Any]) -> OllamaRequest:
    began = time.perf_counter()
    body = parse(OllamaChatBody, given)
    listed = [] if body.messages is None else as_array(body.messages, "messages")
    waiting: list[Call] = []  # calls without a result so far
    if len(listed) > MAX_MESSAGES:
        raise invalid("messages", f"must have at most {MAX_MESSAGES} messages")
    messages = [_message(message, f"messages.{index}", waiting) for index, message in enumerate(listed)]
    tools, warnings = body.tools, list[str]()
    if isinstance(tools, list):  # clients leave out that a tool is a function
        tools = [_typed({"type": "function", **tool}) if isinstance(tool, dict) else tool for tool in tools]
    found = ChatTools(tools).finish(None, None, warnings)
    return _request(body, began, messages, found, warnings=unused_fields(given, OllamaChatBody, warnings))


def parse_generate(given: dict[str, Any]) -> OllamaRequest:
    """Return the request; a prompt is a user message unless it is raw or the prefix of a gap."""
    began = time.perf_counter()
    body = parse(OllamaGenerateBody, given)
    if body.template:
        reason = "Ollama's templates can't be rendered here; leave it out, or send the whole prompt with raw"
        raise invalid("template", reason)
    if body.raw and (body.system or body.context):
        name = "system" if body.system else "context"
        raise invalid(name, "raw mode does not support template, system, or context")
    user = Message("user", _content(body.prompt or "", body.images, "images"))
    if body.suffix and body.images:
        raise invalid("images", "can't be used with a suffix")
    raw = bool(body.raw or body.suffix)
    system = [Message("system", body.system)] if body.system and not raw else []
    return _request(
        body,
        began,
        [*system, user] if user.content or body.suffix else [],
        Tools(),
        at="prompt",
        warnings=unused_fields(given, OllamaGenerateBody),
        raw=raw,
        suffix=body.suffix or "",
        context=body.context or (),
    )


def _request(
    body: AskBody, began: float, messages: Sequence[Message], tools: Tools, at: str = "messages", **more: Any
) -> OllamaRequest:
    """Return the request of a body of either endpoint."""
    options, think = body.options or Options(), body.think
    limit = options.num_predict
    thinking = ReasoningSettings(None if think is None else bool(think), think if isinstance(think, str) else "")
    conversation = Conversation(tuple(messages), tools, thinking, _shape(body.format), messages_at=at)
    return OllamaRequest(
        options=GenerationFields.of(
            options,
            model=body.model or None,
            sse_ping_interval=0,  # an empty line is none that clients could read
            n_keep=options.num_keep,
            n_predict=None if limit is None else max(limit, -1),
            stream=body.stream is not False,
        ),
        media=conversation.media,
        conversation=conversation,
        reply=Reply(body.model or "", chat=isinstance(body, OllamaChatBody)),
        keep_alive_s=body.keep_alive,
        logprobs=Logprobs(bool(body.logprobs), (body.top_logprobs or 0) if body.logprobs else 0),
        began=began,
        **more,
    )


def _shape(given: object) -> ResponseFormat | None:
    if given is None or given == "":
        return None
    if given == "json":
        return ResponseFormat("schema", ANY_OBJECT, "format")
    if not isinstance(given, dict):
        raise invalid("format", f'must be "json" or a valid JSON Schema object, not {short_json(given)}')
    return ResponseFormat("schema", given or ANY_OBJECT, "format")


def _after_context(request: Request, context: Sequence[int], model: LoadedModel) -> Request:
    """Return the prompt after the tokens of ``context``. Raises `InvalidRequest` for one past the vocabulary."""
    if not context:
        return request
    for index, token in enumerate(context):
        check_token(model.vocab, token, f"context.{index}")
    n_dropped = int(request.prompt[0] == model.vocab.bos)
    media = tuple(replace(span, start=span.start + len(context) - n_dropped) for span in request.media)
    return replace(request, prompt=[*context, *request.prompt[n_dropped:]], media=media)


OLLAMA_CHAT, OLLAMA_GENERATE = (
    Dialect(parser, error_line, media_type="application/x-ndjson") for parser in (parse_chat, parse_generate)
)
