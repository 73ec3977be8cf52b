"""``POST /api/chat`` and ``/api/generate``: parses bodies to engine requests; `write` creates the reply.

Fields are Ollama's (github.com/ollama/ollama, api/types.go); ``options`` also accepts all of llama.cpp's sampling
fields.
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
    reject_unsupported_media,
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
from server.dialects.generation import (
    MAX_TOP_LOGPROBS,
    NO_LIMIT,
    ConversationRequest,
    GenerationFields,
    Logprobs,
    Stop,
)
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
FOREVER = -1.0
MAX_S = 1e3 * MAX_MAGNITUDE  # longer durations mean forever

_LOAD_OPTIONS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "num_thread", "numa", "low_vram"),
    *("f16_kv", "logits_all", "vocab_only", "embedding_only", "draft_num_predict", "num_gqa", "rope_frequency_base"),
    "rope_frequency_scale",
)
"""Options with which Ollama loads a model. Here the settings determine them for all clients."""


def _seconds(given: object) -> object:
    """Convert a number, or a duration in Go's format such as ``1h30m``, to seconds. Negative means forever."""
    seconds = given
    if isinstance(given, str) and len(given) <= _MAX_CHARS:
        if _NUMBER.fullmatch(given):
            seconds = float(given)
        elif _DURATION.fullmatch(given):
            parts = re.findall(_DURATION_PART, given, re.ASCII)
            seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts) * (-1 if given[0] == "-" else 1)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError('must be a number of seconds, or a duration such as "5m"')
    return FOREVER if seconds < 0 or seconds > MAX_S else float(seconds)


KeepAlive = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["5m", 0, -1]}),
]
"""Seconds that the model stays loaded after the request; negative = forever."""


_MAX_UNANSWERED = 256
"""Number of newest calls that a tool result may answer."""
_SEVERAL_TYPES = re.compile(r"\w+(?:, ?\w+)+", re.ASCII)


def _content(text: str, images: object, path: str) -> Content:
    """Return a text with its images, which are in base64. Raises `InvalidRequest`."""
    if images is None:
        return text
    if not isinstance(images, list):
        raise wrong_type(path, "an array of images in base64", images)
    for index, image in enumerate(images):
        if not isinstance(image, str):
            raise wrong_type(f"{path}.{index}", "an image in base64", image)
    parts: list[Part] = [Media("image", at=f"{path}.{index}", source=link(image)) for index, image in enumerate(images)]
    return text_content([*parts, TextPart(text)] if text else parts)


def _message(given: object, path: str, unanswered: list[Call]) -> Message:
    given = as_object(given, path)
    role = text_of(given, "role", path).lower()
    if not role:
        raise invalid(f"{path}.role", "is required")
    content = _content(text_of(given, "content", path), given.get("images"), f"{path}.images")
    reasoning_text = text_of(given, "thinking", path)
    if role != "tool":
        listed, at, n = given.get("tool_calls"), f"{path}.tool_calls", len(unanswered)
        listed = [] if listed is None else as_array(listed, at)
        calls = [_call(call, f"{at}.{index}", f"call_{n + index}") for index, call in enumerate(listed)]
        unanswered += calls
        del unanswered[:-_MAX_UNANSWERED]
        return Message(role, content, reasoning_text, tuple(calls))
    name = text_of(given, "tool_name", path) or text_of(given, "name", path)
    call_id = text_of(given, "tool_call_id", path)
    # A result answers the call with its id, otherwise the first call with its name, otherwise the first call. Unknown
    # ids are ignored, because litellm drops the ids of calls, but not of results.
    with_id = [call for call in unanswered if call.id == call_id]
    with_name = [call for call in unanswered if call.name == name]
    for answered in (with_id or (with_name if name else unanswered))[:1]:
        unanswered.remove(answered)
        call_id, name = answered.id, answered.name
    return Message(role, content, reasoning_text, call_id=call_id, name=name)


def _call(given: object, path: str, default_id: str) -> Call:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object", function)
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # OpenAI's format, which clients also send
        text = arguments
    elif isinstance(arguments, dict | None):
        text = json_text(arguments or {})
    else:
        raise wrong_type(f"{path}.function.arguments", "an object", arguments)
    name = text_of(function, "name", f"{path}.function")
    return Call(name, text, text_of(given, "id", path) or default_id)


def _with_type_lists(tool: Any) -> Any:
    """Return a tool whose parameters have lists of types instead of ``integer, string``, as the official client writes
    them. A malformed tool is returned unchanged.
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


class GenerationBody(Body):
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


class OllamaChatBody(GenerationBody):
    """The body of ``POST /api/chat``."""

    messages: Messages = None
    tools: ToolObjects = None


class OllamaGenerateBody(GenerationBody):
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
    started_at: float  # seconds of `time.perf_counter`
    raw: bool = False  # the only message is the prompt, without a template
    suffix: str = ""  # for infill: the text after the gap
    context: Sequence[int] = ()  # tokens before the prompt

    @property
    def only_loads(self) -> bool:
        """Return whether the model is only loaded or unloaded, without generation."""
        return not self.conversation.messages

    def generation(self, context: Context) -> Generation:
        loaded_at, model = time.perf_counter(), context.model
        reply = self.reply if self.reply.model else replace(self.reply, model=model.spec.id)
        if self.conversation.reasoning.enabled and not can_think(model.template):
            raise invalid("think", f"{reply.model!r} does not support thinking")
        request_id = f"ollama-{random_id()}"
        parser: NewParser = plain_parser
        if self.raw:
            request = self._raw_request(context, request_id)
        else:
            output, request = self.prepare(context, request_id, self.conversation)
            request, parser = _after_context(request, self.context, model), output.parser
        has_context = not (self.raw or reply.chat)
        # Clients can't send media tokens back.
        prompt = [token for token in request.prompt if token >= 0] if has_context else None
        writer = OllamaWriter(reply, parser, started_at=self.started_at, loaded_at=loaded_at, prompt=prompt)
        return Generation([request], writer)

    def _raw_request(self, context: Context, request_id: str) -> Request:
        """Return the request for a prompt without a template, or for infill between the prompt and a suffix."""
        (message,), model = self.conversation.messages, context.model
        if self.suffix:
            prefix = model.vocab.tokenize(message.text, add_special=False, parse_special=False)
            tokens = MediaPrompt(suffix_prompt(model, prefix, self.suffix))
        else:
            reject_unsupported_media([message], can_show(model))
            parts = [part.text if isinstance(part, TextPart) else part for part in message.parts]
            tokens = read_parts(parts, model, context.media, must_fit=True)
        response_format = self.conversation.response_format or model.spec.shape
        constraint = None if response_format is None else response_format.constraint(model.grammar)
        (request,) = self.requests(context, request_id, [tokens], constraint)
        return request


def parse_chat(given: dict[str, Any]) -> OllamaRequest:
    started_at = time.perf_counter()
    body = parse(OllamaChatBody, given)
    listed = [] if body.messages is None else as_array(body.messages, "messages")
    unanswered: list[Call] = []  # calls without a result
    if len(listed) > MAX_MESSAGES:
        raise invalid("messages", f"must have at most {MAX_MESSAGES} messages")
    messages = [_message(message, f"messages.{index}", unanswered) for index, message in enumerate(listed)]
    tools, warnings = body.tools, list[str]()
    if isinstance(tools, list):  # the official client omits the type
        tools = [_with_type_lists({"type": "function", **tool}) if isinstance(tool, dict) else tool for tool in tools]
    parsed = ChatTools(tools).finish(None, None, warnings)
    return _request(body, started_at, messages, parsed, warnings=unused_fields(given, OllamaChatBody, warnings))


def parse_generate(given: dict[str, Any]) -> OllamaRequest:
    """Parse the body. The prompt becomes a user message unless it is raw or has a suffix."""
    started_at = time.perf_counter()
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
        started_at,
        [*system, user] if user.content or body.suffix else [],
        Tools(),
        at="prompt",
        warnings=unused_fields(given, OllamaGenerateBody),
        raw=raw,
        suffix=body.suffix or "",
        context=body.context or (),
    )


def _request(
    body: GenerationBody,
    started_at: float,
    messages: Sequence[Message],
    tools: Tools,
    at: str = "messages",
    **more: Any,
) -> OllamaRequest:
    """Return the request for a body of either endpoint."""
    options, think = body.options or Options(), body.think
    limit = options.num_predict
    reasoning = ReasoningSettings(None if think is None else bool(think), think if isinstance(think, str) else "")
    conversation = Conversation(tuple(messages), tools, reasoning, _response_format(body.format), messages_at=at)
    return OllamaRequest(
        options=GenerationFields.of(
            options,
            model=body.model or None,
            sse_ping_interval=0,  # clients can't parse an empty line
            n_keep=options.num_keep,
            n_predict=NO_LIMIT if limit is not None and limit < 0 else limit,
            stream=body.stream is not False,
        ),
        media=conversation.media,
        conversation=conversation,
        reply=Reply(body.model or "", chat=isinstance(body, OllamaChatBody)),
        keep_alive_s=body.keep_alive,
        logprobs=Logprobs(bool(body.logprobs), (body.top_logprobs or 0) if body.logprobs else 0),
        started_at=started_at,
        **more,
    )


def _response_format(given: object) -> ResponseFormat | None:
    if given is None or given == "":
        return None
    if given == "json":
        return ResponseFormat("schema", ANY_OBJECT, "format")
    if not isinstance(given, dict):
        raise invalid("format", f'must be "json" or a valid JSON Schema object, not {short_json(given)}')
    return ResponseFormat("schema", given or ANY_OBJECT, "format")


def _after_context(request: Request, context: Sequence[int], model: LoadedModel) -> Request:
    """Prepend the tokens of ``context`` to the prompt. Raises `InvalidRequest` for ids outside of the vocabulary."""
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
