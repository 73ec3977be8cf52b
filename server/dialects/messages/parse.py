"""Anthropic's Messages API: parses the body to a `Conversation`, which is then handled like OpenAI chat.

llama.cpp's sampling fields are accepted in addition. `write` creates the response.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.chat.conversation import Conversation, ReasoningSettings
from server.chat.prepare import prepare, prompt_of
from server.dialects.common import Header, Json, random_id
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.errors import anthropic_error_event
from server.dialects.fields import Body, Count, Messages, Objects, TextOrObject, TextOrObjects, parse
from server.dialects.generation import (
    UNSAID_BUDGET,
    GenerationFields,
    ReasoningOption,
    ServingFields,
    Stops,
    asked_to_think,
    prepared_request,
    template_kwargs,
)
from server.dialects.mcp import CallableTool, ServerTools, ToolRounds
from server.dialects.messages.mcp import functions, without_toolsets
from server.dialects.messages.messages import read_conversation
from server.dialects.messages.tools import read_tools
from server.dialects.messages.write import NO_SERVER_TOOLS, PING, MessageWriter, Names
from server.dialects.reasoning_cipher import NO_CIPHER, ReasoningCipher
from server.dialects.sampling import SamplingFields
from server.dialects.warnings import left_out, unused_fields
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.structured.response_format import ANY_OBJECT, ResponseFormat

DEFAULT_MAX_TOKENS = 4096
"""llama-server's, for a body without ``max_tokens``."""
_SERVERS_OWN = ("mcp_servers", "container", "compaction", "thread")
"""Fields for functions of Anthropic's servers other than generation."""
_HARMLESS_EDIT = "clear_thinking_20251015"


class OutputConfig(Body):
    """``output_config``."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class MessagesBody(ServingFields, SamplingFields):
    """The body of ``POST /v1/messages`` and its ``/count_tokens``, which needs no ``max_tokens``."""

    also_known = (*_SERVERS_OWN, "context_management")
    max_tokens: Count | None = None
    messages: Messages = None
    system: TextOrObjects = None
    stop_sequences: Stops | None = None
    tools: Objects = None
    tool_choice: TextOrObject = None
    thinking: ReasoningOption | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(ParsedRequest):
    """A request for a message. ``show_reasoning``: whether thinking blocks have a text. ``server_tools``: tools that
    this server calls. ``listings``: the tools of MCP servers, the first blocks of the reply.
    """

    conversation: Conversation
    cipher: ReasoningCipher
    names: Names
    show_reasoning: bool = True
    server_tools: ServerTools | None = None
    listings: Sequence[Json] = ()

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`."""
        options, server = self.options, self.server_tools
        header = Header(model.spec.id, f"msg_{random_id()}")
        prepared = prepare(self.conversation, model, seen)
        request = prepared_request(prepared, options, model, header.id, caller=caller)
        writer = MessageWriter(
            header,
            prepared.output.parser,
            self.cipher.encrypt,
            self.names,
            show_reasoning=self.show_reasoning,
            server_tools=NO_SERVER_TOOLS if server is None else server.tools,
            listings=self.listings,
        )

        def next_round(conversation: Conversation, model: LoadedModel, seen: Seen, caller: Caller) -> Generation:
            prepared = prepare(conversation, model, seen)
            left = max((options.max_tokens or 0) - writer.n_predicted, 0)
            request = prepared_request(prepared, options, model, header.id, max_tokens=left, caller=caller)
            writer.next_round(prepared.output.parser)
            return Generation([request], writer)

        follow_up = None
        if server is not None:
            # The output does not repeat the message that it continues.
            follow_up = ToolRounds(server, self.conversation, writer, next_round, names=True)
        return Generation([request], writer, follow_up=follow_up)


def parse_messages(
    given: dict[str, Any],
    cipher: ReasoningCipher = NO_CIPHER,
    *,
    generate: bool = True,
    mcp: Mapping[str, CallableTool] | None = None,
) -> MessagesRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`.

    `cipher`: encrypts and decrypts reasoning. `mcp`: the tools of the body's MCP servers by the model's names, None
    where the server allows none.
    """
    body = parse(MessagesBody, given)
    if generate and body.max_tokens is None:
        body = body.model_copy(update={"max_tokens": DEFAULT_MAX_TOKENS})
    warnings = list(_left_out(given, has_mcp=mcp is not None))
    own = body.tools if mcp is None else without_toolsets(body.tools)
    choice = None if mcp is not None and not (own or mcp) else body.tool_choice  # no server could list its tools
    given_tools = read_tools(own, choice, warnings, functions(mcp or {}))
    messages = read_conversation(body.system, body.messages, warnings, given_tools, cipher)
    tools = given_tools.tools()
    config = body.output_config or OutputConfig()
    conversation = Conversation(
        tuple(messages),
        tools,
        _thinking(body, config.effort),
        _shape(config.format, "output_config.format") or _shape(body.output_format, "output_format"),
        template_kwargs=template_kwargs(body.chat_template_kwargs),
    )
    return MessagesRequest(
        options=_options(body),
        media=conversation.media,
        warnings=unused_fields(given, MessagesBody, warnings),
        conversation=conversation,
        cipher=cipher,
        names=given_tools.names,
        show_reasoning=body.thinking is None or body.thinking.display != "omitted",
    )


def _left_out(given: dict[str, Any], *, has_mcp: bool) -> Iterator[str]:
    """Return warnings for functions of Anthropic's servers that this server lacks."""
    for name in _SERVERS_OWN:
        if given.get(name) and not (has_mcp and name == "mcp_servers"):
            reason = (
                "this server allows no MCP servers" if name == "mcp_servers" else "only Anthropic's servers have it"
            )
            yield f"{name} is ignored: {reason}"
    context = given.get("context_management")
    edits = context.get("edits") if isinstance(context, dict) else None
    for edit in edits if isinstance(edits, list) else ():
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind != _HARMLESS_EDIT:  # templates leave out earlier reasoning themselves
            yield left_out("edits in context_management", str(kind), 1)


def _options(body: MessagesBody) -> GenerationFields:
    """Sampling and limits under their usual names; all of it is checked already."""
    shared = {name: getattr(body, name) for name in MessagesBody.model_fields if name in GenerationFields.model_fields}
    user = (body.metadata or {}).get("user_id")
    return GenerationFields.model_construct(**{**shared, "stop": body.stop_sequences, "user": user})


def _thinking(body: MessagesBody, effort: str | None) -> ReasoningSettings:
    """Return the reasoning settings, with llama-server's budget if the client enables reasoning without a number."""
    given = body.thinking
    budget = None if given is None else given.budget_tokens
    if given is not None and given.type == "enabled" and budget is None:
        budget = UNSAID_BUDGET
    wanted = asked_to_think(body.chat_template_kwargs, None if given is None else given.wanted)
    return ReasoningSettings(wanted, effort or "", budget)


def _shape(given: dict[str, Any] | None, at: str) -> ResponseFormat | None:
    if given is None:
        return None
    if given.get("type") != "json_schema":
        raise InvalidRequest(f'{at}.type: must be "json_schema"', f"{at}.type")
    schema = given.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{at}.schema: must be a JSON Schema", f"{at}.schema")
    return ResponseFormat("schema", schema or ANY_OBJECT, f"{at}.schema")


def count_message_tokens(conversation: Conversation, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """Return the reply of ``POST /v1/messages/count_tokens``."""
    return {"input_tokens": prompt_of(conversation, model).count(model, seen)}


MESSAGES = Dialect(parse_messages, anthropic_error_event, PING)
