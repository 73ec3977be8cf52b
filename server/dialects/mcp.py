"""MCP tools that this server calls for a model, in any dialect: their names, the calls of a round, and the next round.

A reply consists of rounds of generation. If the model called MCP tools in a round, the server calls them and the next
round continues with their results. The last round has no such calls, waits for the client, or reaches a limit
(`RoundWriter`).
"""

import asyncio
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Generic, TypeVar

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from server.chat.assembler import Assembler, Item, NewParser
from server.chat.conversation import Call, Message, TextPart, Tool, text_content
from server.chat.prepare import Output
from server.chat.truncation import with_short_results
from server.dialects.common import Json
from server.dialects.dialect import Context, Generate, Generation, Writer
from server.dialects.fields import Body, dicts_in, text_in
from server.dialects.generation import ConversationRequest, token_limit
from server.dialects.reasoning_cipher import ReasoningCipher
from server.dialects.tools import ClientName
from server.dialects.usage import Usage
from server.engine.request import Finished, FinishReason, Request, Timings
from server.errors import invalid
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from server.mcp.config import McpServer, is_web_url
from server.mcp.servers import McpFault, McpResult, McpServers, McpTool
from server.media.source import Media

MAX_SERVERS = 16
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
"""Headers that the HTTP client sets. Those of a request could reach another virtual host or break the framing."""
_INVALID_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_CHARS = 64
_GATEWAY_TIMEOUT = 504


def _checked_url(url: str) -> str:
    if url and not (url.isascii() and url.isprintable() and is_web_url(url)):
        raise ValueError("must be an http or https URL")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("must not have a user name")
    return url


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, text in headers.items():
        if name.lower() in _OWN_HEADERS or name.lower().startswith("proxy-"):
            raise ValueError(f"the header {name} is set by this server; leave it out")
        if not _HEADER.fullmatch(name) or not text.isascii() or not text.isprintable():
            raise ValueError(f"{name[:40]!a} can't be sent as a header")
    return headers


def with_token(headers: Mapping[str, str], token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers for an MCP server, with the bearer token if there is one."""
    if not token:
        return tuple(headers.items())
    bearer = token if token.lower().startswith("bearer ") else f"Bearer {token}"
    others = [(name, text) for name, text in headers.items() if name.lower() != "authorization"]
    return (*others, ("Authorization", bearer))


Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Url = Annotated[str, AfterValidator(_checked_url)]
Headers = Annotated[dict[str, str], Field(max_length=100), AfterValidator(_checked_headers)]
Token = Annotated[str, AfterValidator(lambda token: _checked_headers({"Authorization": token})["Authorization"])]


class ToolFilter(Body):
    """Selects tools by name, and by whether the server declares them read-only. None = any."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: McpTool) -> bool:
        """Return whether the tool matches."""
        if self.read_only is not None and tool.is_read_only is not self.read_only:
            return False
        return self.tool_names is None or tool.name in self.tool_names


ALL_TOOLS = ToolFilter.model_construct()  # without building the validator at import
Filter = Annotated[
    ToolFilter, BeforeValidator(lambda given: {"tool_names": given} if isinstance(given, list) else given)
]


class Approval(Body):
    """Which calls need the client's approval: those that match ``always`` but not ``never``."""

    always: Filter = ALL_TOOLS
    never: Filter | None = None

    def needed(self, tool: McpTool) -> bool:
        """Return whether a call of the tool needs the client's approval."""
        return self.always.matches(tool) and not (self.never is not None and self.never.matches(tool))


NO_APPROVAL = Approval.model_construct(never=ALL_TOOLS)


@dataclass(slots=True)
class McpRequest:
    """An MCP server in the body of a request."""

    label: str
    at: str  # path in the body, like ``label_at`` and ``url_at``
    label_at: str
    url: str = ""  # "" for a server of the configuration
    url_at: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    description: str = ""
    allowed: Callable[[McpTool], bool] = ALL_TOOLS.matches
    approval: Approval = NO_APPROVAL
    known: tuple[McpTool, ...] | None = None  # its tools, if the conversation contains their list
    is_listed: bool = True  # whether the reply lists the tools
    # The following are set after the server has listed its tools.
    server: McpServer | None = None
    tools: tuple[McpTool, ...] = ()  # the tools that the request allows
    fault: McpFault | None = None  # why the tools could not be listed


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that the model may call."""

    server: McpServer
    tool: McpTool
    needs_approval: bool = False


def check_labels(requests: Sequence[McpRequest], field_name: str) -> None:
    """Raise `InvalidRequest` for too many servers or duplicate labels."""
    if len(requests) > MAX_SERVERS:
        raise invalid(field_name, f"must have at most {MAX_SERVERS} MCP servers")
    labels: set[str] = set()
    for request in requests:
        if request.label in labels:
            raise invalid(request.label_at, "two MCP servers have the same label")
        labels.add(request.label)


def function_name(label: str, tool: str) -> str:
    """Return the model's name of a tool. Characters that tool formats can't parse become underscores."""
    return f"{_INVALID_CHARS.sub('_', label)}__{_INVALID_CHARS.sub('_', tool)}"[:_MAX_NAME_CHARS]


def _names(tools: object) -> Iterator[str]:
    """Yield the model's names of the functions in ``tools``, with the names of their namespaces."""
    for _, entry in dicts_in(tools):
        yield str(entry.get("name"))
        yield from (f"{entry.get('name')}__{tool.get('name')}" for _, tool in dicts_in(entry.get("tools")))


class ServerTools:
    """The tools of a request's MCP servers, and the remaining limits of calls."""

    def __init__(self, servers: McpServers, requested: Sequence[McpRequest] = (), own: object = None) -> None:
        """Name the tools of the `requested` servers. Names that are used already, also by functions in the body's tools
        (`own`), get a number.
        """
        self.requested, self.left_rounds, self.left_s = requested, servers.rules.max_rounds, servers.rules.max_s
        self.left_calls: int | None = None  # None = unlimited
        self.tools: dict[str, CallableTool] = {}  # by the model's names
        # By the path of the server. The description of a server's first tool also describes the server.
        self.functions: dict[str, list[tuple[Tool, ClientName]]] = {}
        self._servers = servers
        used, numbers = set(_names(own)), Counter[str]()
        for each in requested:
            assert each.server is not None, "the server has listed its tools"
            server_description = each.description or each.server.description
            functions = self.functions[each.at] = []
            for tool in each.tools:
                name = function_name(each.label, tool.name)
                stem = name[: _MAX_NAME_CHARS - 5]
                while name in self.tools or name in used:
                    numbers[stem] += 1
                    name = f"{stem}_{numbers[stem] + 1}"
                self.tools[name] = CallableTool(each.server, tool, each.approval.needed(tool))
                description = "\n\n".join(filter(None, [server_description, tool.description]))
                function = Tool(name, description, {**tool.schema, "type": "object"}, at=each.at)
                functions.append((function, ClientName(tool.name, each.label)))
                server_description = ""

    async def results(self, calls: Sequence[Call]) -> AsyncGenerator[tuple[Call, McpResult], None]:
        """Make the calls; yield each with its result when it completes. Closing the generator cancels running calls."""
        self.left_rounds -= 1
        started_at = time.monotonic()
        tasks = {asyncio.create_task(self._call(call)): call for call in calls}
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=list(tasks).index):
                    yield tasks.pop(task), task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.left_s -= time.monotonic() - started_at

    async def _call(self, call: Call) -> McpResult:
        callable_tool = self.tools.get(call.name)
        try:
            if callable_tool is None:
                raise McpFault(f"there is no tool {call.name[:80]!a}")
            if self.left_calls is not None:
                if self.left_calls <= 0:
                    raise McpFault("not called: max_tool_calls is reached")
                self.left_calls -= 1
            try:
                arguments = orjson.loads(call.arguments or "{}")
            except orjson.JSONDecodeError:
                arguments = None
            if not isinstance(arguments, dict):
                raise McpFault("the arguments are not a JSON object")
            async with asyncio.timeout(max(self.left_s, 0.0)):
                return await self._servers.call(callable_tool.server, callable_tool.tool.name, arguments)
        except McpFault as fault:
            return McpResult(fault=fault)
        except TimeoutError:
            return McpResult(fault=McpFault("the calls of this response took too long", "http", _GATEWAY_TIMEOUT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest(ConversationRequest):
    """A request to a model that may call tools of MCP servers."""

    names: Mapping[str, ClientName]  # the client's names of functions, by the model's names
    cipher: ReasoningCipher
    server_tools: ServerTools | None = None
    listings: Sequence[Json] = ()  # items that list these tools, at the start of the output


@dataclass(frozen=True, slots=True)
class ApprovedCallsParser:
    """The `OutputParser` of a round without generation, which returns the approved ``calls``."""

    calls: Sequence[Call]

    def feed(self, _: str) -> list[Piece]:
        return []

    def finish(self, **_: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for index, call in enumerate(self.calls):
            pieces += ToolCallBegin(index, call.id, call.name), ToolCallArguments(index, call.arguments)
        return pieces


_NOT_GENERATED = Finished(0, FinishReason.EOS, "", 0, 0, 0, Timings(), -1, -1)


R = TypeVar("R", bound=ToolRequest)


class RoundWriter(Writer, Generic[R]):
    """Writes a reply of several rounds: calls the tools of each round and creates the next round.

    A writer may change the id of a call when it starts. The conversation has the same ids as the reply.
    """

    names_results = False  # whether tool results in the conversation have the names of their tools

    def __init__(self, request: R, request_id: str, parser: NewParser, approved: Container[str] | None = None) -> None:
        """`approved`: ids of the approved calls that are the first round; None if the first round generates."""
        self.request, self._id, self._tools = request, request_id, request.server_tools
        self.server_tools: Mapping[str, CallableTool] = {} if self._tools is None else self._tools.tools
        self.assembler = Assembler(parser())  # of the current round
        self.conversation = request.conversation  # before the current round
        self.approved, self._is_approval = approved or (), approved is not None
        self._earlier = Usage()  # of earlier rounds
        self._results: list[Message] = []

    @abstractmethod
    def completed(self, call: Call, result: McpResult) -> list[bytes]:
        """Process the result of a call; return its events."""

    @property
    def usage(self) -> Usage:
        """Return the token counts of all rounds so far."""
        return self._earlier + Usage.of([(0, self.assembler.finished)], self.assembler.n_reasoning_tokens)

    @property
    def is_truncated(self) -> bool:
        """Return whether a limit ended the round."""
        return self.assembler.finished.reason is FinishReason.LIMIT

    @property
    def waits_for_client(self) -> bool:
        """Return whether the client must execute or approve calls."""
        return not all(map(self._is_server_call, self.assembler.calls))

    def next_round(self, parser: NewParser) -> None:
        """Continue with another round of generation."""
        self._earlier = self.usage
        self.assembler = Assembler(parser())

    async def act(self) -> AsyncGenerator[bytes, None]:
        """Make the calls of the round, unless a limit truncated it; yield the resulting events."""
        if self._is_approval:
            self._is_approval = False
            for event in self.feed(0, _NOT_GENERATED):
                yield event
        items = [] if self.is_truncated else [item for item in self.assembler.calls if self._is_server_call(item)]
        calls = [Call(item.name, item.text, item.id) for item in items]
        self._results = []
        if not calls:
            return
        assert self._tools is not None, "the calls are of MCP servers' tools"
        self.has_acted = True
        results: dict[str, McpResult] = {}
        async for call, result in self._tools.results(calls):
            results[call.id] = result
            for event in self.completed(call, result):
                yield event
        for call in calls:
            result = results[call.id]
            text = result.text if result.images else result.shown
            content = text_content([*([TextPart(text)] if text else []), *result.images])
            name = call.name if self.names_results else ""
            self._results.append(Message("tool", content, call_id=call.id, name=name))

    def next(self) -> tuple[Generate, Sequence[Media]] | None:
        if not self._results or self.waits_for_client:
            return None
        tools, limits = self.conversation.tools, self._tools
        assert limits is not None, "MCP servers' tools were called"
        if limits.left_rounds <= 0 or limits.left_s <= 0 or limits.left_calls == 0:
            tools = replace(tools, choice="none", name="")
        elif tools.choice == "required":
            tools = replace(tools, choice="auto", name="")
        messages = (*self.conversation.messages, self.assembler.message(), *self._results)
        self.conversation = replace(
            self.conversation,
            messages=messages,
            tools=tools,
            add_generation_prompt=None,
            continue_final_message=None,
        )
        return self._next_generation, self.conversation.media

    def _next_generation(self, context: Context) -> Generation:
        """Return the generation of the next round, with the remaining token limit of the request."""
        limit = token_limit(self.request.options, context.model.spec.n_predict)
        left = max(limit - self.usage.completion, 0) if limit >= 0 else limit
        request = replace(self.request, options=self.request.options.model_copy(update={"n_predict": left}))
        output, generated = self._prepared(request, context, None if left < 0 else left)
        self.next_round(output.parser)
        return Generation([generated], self, output.switch)

    def _prepared(self, request: R, context: Context, max_tokens: int | None) -> tuple[Output, Request]:
        """Prepare the next round. If its prompt does not fit, shorten the results of this one first."""
        if fitting := request.prepare_fitting(context, self._id, self.conversation, max_tokens):
            return fitting
        n_results = len(self._results)
        self.conversation = with_short_results(self.conversation, n_results, context.model, context.media, max_tokens)
        return request.prepare(context, self._id, self.conversation)

    def _is_server_call(self, item: Item) -> bool:
        tool = self.server_tools.get(item.name)
        return tool is not None and (not tool.needs_approval or item.id in self.approved)


def tools_of(listed: object) -> tuple[McpTool, ...]:
    """Return the valid tools of a list that a client sent back."""
    tools = []
    for _, entry in dicts_in(listed):
        match entry:
            case {"name": str(name), "input_schema": dict(schema), **more}:
                annotations, description = more.get("annotations"), text_in(more, "description")
                tools.append(McpTool(name, description, schema, annotations if isinstance(annotations, dict) else None))
    return tuple(tools)


def shown_tool(tool: McpTool) -> Json:
    """Return a tool for a list in a reply."""
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
