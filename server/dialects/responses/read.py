"""OpenAI's Responses API: parses the body to a `Conversation` and one engine request.

llama.cpp's chat fields are accepted in addition to OpenAI's. `write` creates the response.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from server.chat.assembler import Assembler
from server.chat.conversation import Conversation, Message
from server.chat.prepare import Prepared, prepare
from server.chat.truncation import fits, truncated
from server.dialects.chat.known import TOOL_CHOICE
from server.dialects.chat.read import ChatBody, chat_logprobs
from server.dialects.common import Header, Json, random_id
from server.dialects.constraints import read_shape
from server.dialects.fields import Body, Count, Whole, field_error, parse
from server.dialects.generation import INNER_FIELDS, MAX_TOP_LOGPROBS, Generation, Limit, prepared_request, token_limit
from server.dialects.known import Fields, fields_of
from server.dialects.mcp import ToolRounds
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher
from server.dialects.responses.history import NO_HISTORY, History
from server.dialects.responses.input import read_input
from server.dialects.responses.items import OutputItems
from server.dialects.responses.known import ITEM, TEXT_FORMAT, TOOL
from server.dialects.responses.mcp import ApprovedCall, McpRounds
from server.dialects.responses.tools import ClientTools, ToolReader
from server.dialects.responses.write import Keep, ResponseFrame, ResponseReply, ResponseStream
from server.dialects.thinking import read_thinking, template_kwargs
from server.dialects.warnings import shown
from server.engine.request import Request
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_INCLUDES = (
    *(LOGPROBS, ENCRYPTED_REASONING),
    # of tools and input that no response here has
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_ONLY_CHATS = ("messages", "functions", "function_call", "audio", "modalities", "web_search_options", "echo")


class ReasoningOptions(Body):
    """``reasoning``."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None

    @property
    def wanted_summary(self) -> str | None:
        """Return the requested kind of summary; ``generate_summary`` is OpenAI's older name of the field."""
        given = self.summary or self.generate_summary
        return None if given == "none" else given


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
        return _checked_metadata(value)

    @property
    def generates(self) -> bool:
        """Return whether to generate output; otherwise the prompt is only computed for the next request (Codex)."""
        return self.generate is not False

    @property
    def stored(self) -> bool:
        """Whether the client may retrieve the response later; true by default, as at OpenAI."""
        return self.store is not False

    @property
    def encrypts_reasoning(self) -> bool:
        """Return whether reasoning items have ``encrypted_content``: the client requests it, or stores items itself."""
        return not self.stored or ENCRYPTED_REASONING in (self.include or ())

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response continues and is added to."""
        given = self.conversation
        return given.get("id") if isinstance(given, dict) else given

    @field_validator("conversation")
    @classmethod
    def _names_a_conversation(cls, value: object) -> object:
        if not isinstance(value["id"] if isinstance(value, dict) and "id" in value else value, str):
            raise ValueError("must be the id of a conversation, or an object with it")
        return value


def read_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """Return a body's ``metadata``, empty for none. Raises `InvalidRequest`."""
    try:
        return {} if body.get("metadata") is None else _checked_metadata(body["metadata"])
    except ValueError as error:
        raise field_error("metadata", str(error)) from None


def _checked_metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("must be an object of strings")
    if len(value) > MAX_METADATA:
        raise ValueError(f"must have at most {MAX_METADATA} pairs")
    if any(len(key) > MAX_METADATA_KEY_CHARS or len(text) > MAX_METADATA_CHARS for key, text in value.items()):
        raise ValueError(f"keys must have at most {MAX_METADATA_KEY_CHARS} characters, values {MAX_METADATA_CHARS}")
    return value


FIELDS = fields_of(
    ResponsesBody,
    input=ITEM,
    tools=TOOL,
    tool_choice=TOOL_CHOICE,
    conversation=Fields("id"),
    text=fields_of(TextOptions, format=TEXT_FORMAT),
) | (INNER_FIELDS | fields_of(ChatBody)).without(*_ONLY_CHATS)
"""The fields of the body, at any depth."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A checked body. ``fields`` are those that it shares with a chat."""

    body: ResponsesBody
    fields: ChatBody
    conversation: Conversation
    tools: ClientTools
    history: History
    cipher: ReasoningCipher
    approved: Sequence[ApprovedCall] = ()  # calls of MCP tools that are yet to be made
    mcp: McpRounds | None = None  # tools that this server calls

    @property
    def summary(self) -> str | None:
        """Return the requested kind of reasoning summary."""
        return None if self.body.reasoning is None else self.body.reasoning.wanted_summary


def read_response(
    given: Mapping[str, Any], history: History = NO_HISTORY, cipher: ReasoningCipher = NO_CIPHER
) -> ParsedResponse:
    """Validate the fields that don't depend on a model.

    `history`: the earlier items. `cipher`: encrypts and decrypts reasoning. Raises `InvalidRequest`.
    """
    body = parse(ResponsesBody, given)
    _check_state(body)
    chat_body = parse(ChatBody, _chat_fields(given, body))
    form = None if body.text is None else body.text.format
    shape = read_shape(chat_body) if form is None else read_shape(chat_body, form, at="text.format", flat=True)
    if chat_body.n_choices != 1:
        raise field_error("n" if chat_body.n_cmpl is None else "n_cmpl", "a response has one choice")
    reader = ToolReader(body.tools)
    read = read_input(body.input, history, tools=reader, cipher=cipher)
    tools = reader.finish(body.tool_choice, body.parallel_tool_calls)
    if tools.tools.callable and chat_body.grammar:
        raise InvalidRequest("grammar: Cannot use custom grammar constraints with tools.", "grammar")
    # A response's instructions come first and hold for that response only, so the history has none.
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
    return ParsedResponse(body, chat_body, conversation, tools, history, cipher, read.approved)


def _without_effect(body: ResponsesBody) -> Iterator[str]:
    reasoning = body.reasoning or ReasoningOptions()
    if reasoning.wanted_summary == "concise":
        yield "reasoning.summary is the whole reasoning: it is not made shorter"
    if body.text is not None and body.text.verbosity is not None:
        yield "text.verbosity is ignored: no template has a place for it"
    if body.context_management:
        yield "context_management is ignored: the conversation stays as it is sent"
    for name in body.include or ():
        if name not in _INCLUDES:
            yield f"include {shown(name)} is ignored: it is not known here"


def _check_state(body: ResponsesBody) -> None:
    """Raise `InvalidRequest` for fields about stored state that cannot be combined."""
    if body.prompt:
        raise InvalidRequest("prompt: stored prompts are not supported; send instructions and input", "prompt")
    if body.background and not body.stored:
        raise InvalidRequest("background: needs store, since the client retrieves the response later", "background")


def _chat_fields(given: Mapping[str, Any], body: ResponsesBody) -> Json:
    """Return the chat's fields without messages and tools."""
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
    asked: ParsedResponse,
    model: LoadedModel,
    keep: Callable[[ParsedResponse, bool], Keep],
    seen: Seen = NOTHING_SEEN,
    response_id: str = "",
) -> Generation:
    """Return the engine's request and the writer of the response. Blocks, so run it in a thread.

    `keep` returns the function that stores the finished response; its flag is whether the last input message is the
    first part of the output. Raises `InvalidRequest`.
    """
    header = Header(model.spec.id, response_id or new_response_id())
    mcp = asked.mcp or McpRounds()
    conversation = mcp.continued(asked.conversation)
    prepared, request, output = _round(asked, conversation, model, seen, header.id, first_index=len(mcp.lead))
    prefilled = prepared.prompt.prefilled
    fields = response_fields(asked, header, request.sampling.temperature, request.sampling.top_p)
    frame = ResponseFrame(fields, stored=asked.body.stored, generates=asked.body.generates)
    writer = (ResponseStream if asked.fields.stream or asked.body.background else ResponseReply)(
        frame, output, prefill=prefilled, lead=mcp.lead
    )
    store = keep(asked, bool(prefilled))

    async def commit() -> None:
        writer.final["store"] = await store(writer.final)

    def next_round(conversation: Conversation, model: LoadedModel, seen: Seen) -> Generation:
        left = token_limit(asked.fields, model.spec.n_predict)
        left = max(left - writer.n_predicted, 0) if left >= 0 else left
        prepared, request, output = _round(
            asked, conversation, model, seen, header.id, first_index=writer.n_items, max_tokens=left
        )
        writer.next_round(output)
        return Generation([request], writer, prepared.output.switch)

    follow_up = None
    if mcp.server_tools is not None:
        # The output repeats the message that it continues.
        before = replace(conversation, messages=conversation.messages[:-1]) if prefilled else conversation
        follow_up = ToolRounds(mcp.server_tools, before, writer, next_round)
    return Generation([request], writer, prepared.output.switch, commit=commit, follow_up=follow_up)


def _round(
    asked: ParsedResponse,
    conversation: Conversation,
    model: LoadedModel,
    seen: Seen,
    request_id: str,
    *,
    first_index: int,
    max_tokens: int | None = None,
) -> tuple[Prepared, Request, OutputItems]:
    """Prepare one round of generation. Its first item has the place `first_index` in the output."""
    logprobs = chat_logprobs(asked.fields)
    prepared, limit = prepare(conversation, model, seen), asked.body.max_output_tokens
    if asked.body.truncation == "auto" and not fits(len(prepared.tokens.tokens), model.engine.n_ctx_seq, limit):
        prepared = prepare(truncated(conversation, model, seen, limit), model, seen)
    request = prepared_request(prepared, asked.fields, model, request_id, logprobs)
    if max_tokens is not None:
        request.max_tokens = max_tokens
    tools = {} if asked.mcp is None else asked.mcp.tools
    output = OutputItems(
        Assembler(prepared.output.parser()),
        asked.tools,
        after_sampling=request.post_sampling_probs,
        encrypt=asked.cipher.encrypt if asked.body.encrypts_reasoning else None,
        summarizes=asked.summary is not None,
        server_tools=tools,
        first_index=first_index,
    )
    return prepared, request, output


def new_response_id() -> str:
    """Return an id for a response."""
    return f"resp_{random_id()}"


def response_fields(asked: ParsedResponse, header: Header, temperature: float | None, top_p: float | None) -> Json:
    """Return the request's fields as OpenAI's response object repeats them, with the sampling values in effect."""
    body, reasoning = asked.body, asked.body.reasoning or ReasoningOptions()
    text = asked.body.text or TextOptions()
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
        "reasoning": {"effort": reasoning.effort, "summary": asked.summary},
        "temperature": temperature,
        "text": {"format": text.format or {"type": "text"}, **verbosity},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(asked.tools.shown),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": top_p,
        "truncation": body.truncation or "disabled",
    }
