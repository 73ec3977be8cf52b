"""OpenAI's Responses API: parses the body to a `Conversation` and one engine request.

llama.cpp's chat fields are accepted in addition to OpenAI's. `write` creates the reply.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from server.chat.assembler import NewParser
from server.chat.conversation import Call, Conversation, Message
from server.chat.prepare import Output
from server.chat.truncation import truncated
from server.dialects.chat.parse import chat_logprobs
from server.dialects.common import Header, Json, random_id
from server.dialects.constraints import read_response_format
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.fields import (
    Body,
    Count,
    CountOrAll,
    Format,
    Input,
    Objects,
    Unsupported,
    Whole,
    field_error,
    parse,
    refuse_deep,
)
from server.dialects.generation import MAX_TOP_LOGPROBS, ChatFields, ConversationRequest, Logprobs
from server.dialects.mcp import ApprovedCallsParser, ServerTools, ToolRequest
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher
from server.dialects.responses.input import NO_HISTORY, History, item_to_store, read_input
from server.dialects.responses.tools import ApprovedCall, ResponseTools, list_item
from server.dialects.responses.write import EARLY_PING, ResponseWriter, failed_early
from server.dialects.warnings import quoted, unused_fields
from server.engine.request import Request, SamplingParams
from server.errors import invalid

MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_INCLUDES = (
    *(LOGPROBS, ENCRYPTED_REASONING),
    # without effect: for tools and inputs that responses of this server do not have
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)


class ReasoningOptions(Body):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """OpenAI's older name of ``summary``."""


class TextOptions(Body):
    without_effect: ClassVar = {"verbosity": (None, "no template has a place for it")}
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=MAX_METADATA)
]


class MetadataBody(Body):
    metadata: Metadata | None = None


class ConversationParam(Body):
    id: str


class ResponsesBody(ChatFields):
    """The body of ``POST /v1/responses``: OpenAI's fields, and llama.cpp's chat fields."""

    without_effect: ClassVar = {"context_management": ([], "the conversation stays as it is sent")}
    input: Input = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    max_output_tokens: CountOrAll | None = None
    max_tool_calls: Count | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    background: bool | None = None
    conversation: str | ConversationParam | None = None
    prompt: Unsupported = None
    context_management: Objects = None
    generate: bool | None = None

    @property
    def stored(self) -> bool:
        """Return whether the client may retrieve the response later; true by default, as in OpenAI's API."""
        return self.store is not False

    @property
    def summary(self) -> str | None:
        """Return the requested type of reasoning summary, None for no summary."""
        reasoning = self.reasoning or ReasoningOptions()
        given = reasoning.summary or reasoning.generate_summary
        return None if given == "none" else given

    @property
    def encrypts_reasoning(self) -> bool:
        """Return whether reasoning items have ``encrypted_content``: if requested, or if the response is not stored."""
        return not self.stored or ENCRYPTED_REASONING in (self.include or ())

    @property
    def conversation_id(self) -> str | None:
        """Return the id of the conversation that the response continues."""
        given = self.conversation
        return given.id if isinstance(given, ConversationParam) else given


def read_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """Return a body's ``metadata``, empty for none. Raises `InvalidRequest`."""
    return parse(MetadataBody, body).metadata or {}


Store = Callable[[Json, list[Json]], Awaitable[bool]]
"""Stores a finished response with the items of its input. Returns whether the client may retrieve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(ToolRequest):
    options: ResponsesBody  # without input and tools
    shown_tools: Sequence[Json]  # ``tools`` as the response repeats them
    history: History
    input_items: list[Json]  # as they are stored
    approved: Sequence[ApprovedCall] = ()  # approved calls of MCP tools without a result
    response_id: str = ""
    store: Store | None = None

    def approved_calls(self) -> list[Call]:
        """Return the approved calls with the model's names of their tools.

        Raises `InvalidRequest` for a call whose MCP server or tool is not in the request.
        """
        tools = () if self.server_tools is None else self.server_tools.tools.items()
        names = {(tool.server.label, tool.tool.name): name for name, tool in tools}
        for each in self.approved:
            if (each.label, each.name) not in names:
                raise invalid(each.at, "the request's tools lack the MCP server or the tool of the approved call")
        return [Call(names[each.label, each.name], each.arguments, each.id) for each in self.approved]

    def generation(self, context: Context) -> Generation:
        approved = self.approved_calls()
        header = Header(context.model.spec.id, self.response_id or new_response_id())
        requests: list[Request] = []
        parser: NewParser = partial(ApprovedCallsParser, approved)
        switch, prefilled = None, ""
        if not approved:
            output, request = self.prepare(context, header.id, self.conversation)
            requests, prefilled = [request], output.prompt.prefilled
            parser, switch = output.parser, output.switch
        fields = response_fields(self, header, context.model.spec.sampling)
        return Generation(requests, ResponseWriter(self, fields, parser, prefilled), switch)

    def prepare(self, context: Context, request_id: str, conversation: Conversation) -> tuple[Output, Request]:
        """Prepare one round of generation. With ``truncation: auto``, drop the oldest messages if necessary."""
        limit = self.options.max_output_tokens
        if self.options.truncation == "auto":
            if fitting := self.prepare_fitting(context, request_id, conversation, limit):
                return fitting
            conversation = truncated(conversation, context.model, context.media, limit)
        return ConversationRequest.prepare(self, context, request_id, conversation)


def parse_response(
    given: Mapping[str, Any],
    history: History = NO_HISTORY,
    cipher: ReasoningCipher = NO_CIPHER,
    mcp: ServerTools | None = None,
) -> ResponseRequest:
    """Parse the body. `history`: stored items. `cipher`: encrypts and decrypts reasoning. `mcp`: MCP servers' tools."""
    body = parse(ResponsesBody, given)
    refuse_deep(given)
    if body.prompt:
        raise invalid("prompt", "stored prompts are not supported; send instructions and input")
    if body.background and not body.stored:
        raise invalid("background", "needs store, since the client retrieves the response later")
    form = None if body.text is None else body.text.format
    if form is not None and body.response_format:
        raise invalid("text.format", "can't be used together with response_format")
    if form is None:
        response_format = read_response_format(body)
    else:
        response_format = read_response_format(body, form, at="text.format", flat=True)
    if body.n_choices != 1:
        raise field_error("n" if body.n_cmpl is None else "n_cmpl", "a response has one choice")
    reader = ResponseTools(body.tools, None if mcp is None else mcp.functions)
    parsed = read_input(body.input, history, tools=reader, cipher=cipher)
    if mcp is not None:
        mcp.left_calls = body.max_tool_calls
    include, warnings = body.include or (), list[str]()
    if body.summary == "concise":
        warnings.append("reasoning.summary is the whole reasoning: it is not made shorter")
    unknown = (name for name in include if name not in _INCLUDES)
    warnings += (f"include {quoted(name)} is ignored: it is not known here" for name in unknown)
    tools = reader.finish(body.tool_choice, body.parallel_tool_calls, warnings)
    # Instructions apply only to one response, so stored items do not contain them.
    messages = [Message("system", body.instructions), *parsed.messages] if body.instructions else parsed.messages
    if not messages:
        raise invalid("input", "must have at least one item")
    logprobs = chat_logprobs(body, body.logprobs, None)
    if body.top_logprobs or LOGPROBS in include:
        logprobs = Logprobs(True, body.top_logprobs or 0)
    options = body.model_copy(update=_changed_options(body))
    conversation = options.as_conversation(messages, tools, response_format, at="input")
    return ResponseRequest(
        options=options,
        media=conversation.media,
        warnings=unused_fields(given, ResponsesBody, [*warnings, *parsed.warnings]),
        conversation=conversation,
        logprobs=logprobs,
        names=reader.names,
        shown_tools=reader.shown,
        history=history,
        cipher=cipher,
        input_items=list(map(item_to_store, parsed.items)),
        approved=tuple(parsed.approved.values()),
        server_tools=mcp,
        listings=[] if mcp is None else [list_item(each) for each in mcp.requested if each.is_listed],
    )


def _changed_options(body: ResponsesBody) -> Json:
    """Return the fields that the options change: limits under the names of chats, and no input."""
    fields: Json = dict.fromkeys(("input", "tools"))
    if body.generate is False:  # Codex: only prefill, for the next request
        fields["n_predict"] = 0
    elif body.max_output_tokens is not None:
        fields["n_predict"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return fields


def new_response_id() -> str:
    return f"resp_{random_id()}"


def response_fields(parsed: ResponseRequest, header: Header, defaults: SamplingParams | None = None) -> Json:
    """Return the fields of the request that the response repeats. `defaults`: the model's, if it is loaded."""
    body, text = parsed.options, parsed.options.text or TextOptions()
    verbosity = {"verbosity": text.verbosity} if text.verbosity else {}
    return {
        "id": header.id,
        "created_at": header.created,
        "model": header.model,
        "background": bool(body.background),
        "conversation": None if body.conversation is None else {"id": body.conversation_id},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": body.summary},
        "temperature": body.temperature if body.temperature is not None or defaults is None else defaults.temperature,
        "text": {"format": text.format or {"type": "text"}, **verbosity},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(parsed.shown_tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p if body.top_p is not None or defaults is None else defaults.top_p,
        "truncation": body.truncation or "disabled",
    }


RESPONSES = Dialect(parse_response, failed_early, EARLY_PING)
