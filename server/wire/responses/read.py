"""OpenAI's Responses API: the body as a `Conversation`, and one engine request for it.

Beside OpenAI's fields every one of a chat that is llama.cpp's own is taken. What comes back is written by `write`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from server.conversation.assembler import Assembler
from server.conversation.conversation import Conversation, Message
from server.conversation.prepare import prepare
from server.engine.request import Request
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.wire.chat.read import ChatBody, chat_logprobs
from server.wire.common import Header, Json, random_id
from server.wire.constraints import read_shape
from server.wire.fields import Body, Count, Whole, field_error, names_of, parse
from server.wire.generation import MAX_TOP_LOGPROBS, Generation, Limit, prepared_request
from server.wire.responses.input import read_input
from server.wire.responses.items import OutputItems
from server.wire.responses.store import ClientResponses
from server.wire.responses.tools import ClientTools, read_tools
from server.wire.responses.write import ResponseFrame, ResponseReply, ResponseStream
from server.wire.thinking import read_thinking, template_kwargs
from server.wire.warnings import shown

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (
    *(LOGPROBS, "reasoning.encrypted_content"),
    # of tools and input that no response here has
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_REFUSED = {
    "background": "is not supported, use stream",
    "conversation": "is not supported, use previous_response_id",
    "prompt": "stored prompts are not supported, use instructions and input",
}
_ONLY_CHATS = ("messages", "functions", "function_call", "audio", "modalities", "web_search_options", "echo")


class ReasoningOptions(Body):
    """``reasoning``."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None


class TextOptions(Body):
    """``text``."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(Body):
    """The fields that a chat doesn't have, or has under another name."""

    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Any = None
    max_output_tokens: Limit | None = None
    max_tool_calls: Count | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    generate: bool | None = None

    @field_validator("metadata")
    @classmethod
    def _readable_metadata(cls, value: object) -> object:
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ValueError("must be an object of strings")
        if len(value) > MAX_METADATA:
            raise ValueError(f"must have at most {MAX_METADATA} pairs")
        if any(len(key) > MAX_METADATA_KEY_CHARS or len(text) > MAX_METADATA_CHARS for key, text in value.items()):
            raise ValueError(f"keys must have at most {MAX_METADATA_KEY_CHARS} characters, values {MAX_METADATA_CHARS}")
        return value

    @property
    def generates(self) -> bool:
        """Whether there is to be any output; without it the prompt is computed for the next request (Codex)."""
        return self.generate is not False

    @property
    def stored(self) -> bool:
        """Whether the response may be named later; yes unless the client says no, as at OpenAI."""
        return self.store is not False


FIELDS = names_of(ResponsesBody) | (names_of(ChatBody) - {*_ONLY_CHATS})


@dataclass(frozen=True, slots=True)
class ResponseAsked:
    """A checked body. ``fields`` are those that it shares with a chat; ``messages`` the conversation's without the
    instructions, which hold for one response only.
    """

    body: ResponsesBody
    fields: ChatBody
    conversation: Conversation
    messages: list[Message]
    tools: ClientTools


def read_response(given: Mapping[str, Any], stored: ClientResponses) -> ResponseAsked:
    """Check what needs no model; `stored` has the responses that the client may refer to. Raises `InvalidRequest`."""
    body = parse(ResponsesBody, given)
    _refuse(body)
    chat_body = parse(ChatBody, _chat_fields(given, body))
    form = None if body.text is None else body.text.format
    shape = read_shape(chat_body) if form is None else read_shape(chat_body, form, at="text.format", flat=True)
    if chat_body.n_choices != 1:
        raise field_error("n" if chat_body.n_cmpl is None else "n_cmpl", "a response has one choice")
    read = read_input(body.input, _before(body, stored), stored)
    tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, read.tools)
    if tools.tools.callable and chat_body.grammar:
        raise InvalidRequest("grammar: Cannot use custom grammar constraints with tools.", "grammar")
    messages = [Message("system", body.instructions), *read.messages] if body.instructions else read.messages
    if not messages:
        raise InvalidRequest("input: must have at least one item", "input")
    conversation = Conversation(
        tuple(messages),
        tools.tools,
        read_thinking(chat_body),
        shape,
        chat_body.lazy,
        template_kwargs=template_kwargs(chat_body.chat_template_kwargs),
        opens=chat_body.add_generation_prompt,
        continues=chat_body.continue_final_message,
        reads_calls=chat_body.parse_tool_calls is not False,
        messages_at="input",
        warnings=(*_without_effect(body), *tools.warnings, *read.warnings),
    )
    return ResponseAsked(body, chat_body, conversation, read.messages, tools)


def _without_effect(body: ResponsesBody) -> Iterator[str]:
    reasoning = body.reasoning or ReasoningOptions()
    if {reasoning.summary, reasoning.generate_summary} - {None, "none"}:
        yield "reasoning.summary is ignored: thoughts are not summarized but given whole"
    if body.truncation == "auto":
        yield "truncation is ignored: input that is too long is an error"
    if body.text is not None and body.text.verbosity is not None:
        yield "text.verbosity is ignored: no template has a place for it"
    if body.context_management:
        yield "context_management is ignored: the conversation stays as it is sent"
    for name in body.include or ():
        if name not in _INCLUDES:
            yield f"include {shown(name)} is ignored: it is not known here"


def _refuse(body: ResponsesBody) -> None:
    for name, reason in _REFUSED.items():
        if getattr(body, name):
            raise InvalidRequest(f"{name}: {reason}", name)


def _before(body: ResponsesBody, stored: ClientResponses) -> list[Message]:
    if not body.previous_response_id:
        return []
    messages = stored.messages(body.previous_response_id)
    if messages is None:
        raise InvalidRequest(
            f"Previous response with id '{body.previous_response_id[:80]}' not found.", "previous_response_id"
        )
    return messages


def _chat_fields(given: Mapping[str, Any], body: ResponsesBody) -> Json:
    """The chat's fields, but for messages and tools."""
    fields = {
        name: value
        for name, value in given.items()
        if name not in ResponsesBody.model_fields and name not in _ONLY_CHATS
    }
    if body.max_output_tokens is not None:
        fields["n_predict"] = body.max_output_tokens
    if not body.generates:
        fields["n_predict"] = 0
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.text is not None and body.text.format is not None and fields.get("response_format"):
        raise InvalidRequest("text.format: can't be used beside response_format", "text.format")
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return fields


def response_generation(
    asked: ResponseAsked, model: LoadedModel, stored: ClientResponses, seen: Seen = NOTHING_SEEN
) -> Generation:
    """The request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`."""
    header = Header(model.spec.id, f"resp_{random_id()}")
    logprobs = chat_logprobs(asked.fields)
    prepared = prepare(asked.conversation, model, seen)
    request = prepared_request(prepared, asked.fields, model, header.id, logprobs)
    prefilled = prepared.prompt.prefilled
    frame = _frame(asked, request, header, stored, prefilled=bool(prefilled))
    assembler = Assembler(prepared.output.parser())
    output = OutputItems(assembler, asked.tools, after_sampling=request.post_sampling_probs)
    writer = ResponseStream if asked.fields.stream else ResponseReply
    return Generation([request], writer(frame, output, prefill=prefilled), prepared.output.switch)


def _frame(
    asked: ResponseAsked, request: Request, header: Header, stored: ClientResponses, *, prefilled: bool
) -> ResponseFrame:
    # A message that is continued is a part of the output.
    before = asked.messages[:-1] if prefilled else asked.messages

    def keep(reply: Json, output: OutputItems) -> bool:
        messages = [*before, output.message()] if output.items else before
        return stored.keep(reply, messages) if asked.body.stored else stored.remember(reply, messages)

    kept = keep if asked.body.stored or stored.remembers else None
    return ResponseFrame(
        _repeated(asked, request, header), kept, stored=asked.body.stored, generates=asked.body.generates
    )


def _repeated(asked: ResponseAsked, request: Request, header: Header) -> Json:
    """What was asked for, as OpenAI repeats it; sampling with the values that hold."""
    body, reasoning = asked.body, asked.body.reasoning or ReasoningOptions()
    text = asked.body.text or TextOptions()
    verbosity = {"verbosity": text.verbosity} if text.verbosity else {}
    return {
        "id": header.id,
        "created_at": header.created,
        "model": header.model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "temperature": request.sampling.temperature,
        "text": {"format": text.format or {"type": "text"}, **verbosity},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(asked.tools.shown),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
    }
