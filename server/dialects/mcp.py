"""MCP tools that this server calls for a model, in any dialect: their names, the calls of a round, and the next round.

A reply consists of rounds. In each the model generates. If it called such tools, the server calls them and the model
continues with their results. The last round calls none, needs the client, or reaches a limit (`RoundWriter`).
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
from server.dialects.common import Json
from server.dialects.dialect import Context, Generate, Generation, Writer
from server.dialects.fields import Body, dicts_in, text_in
from server.dialects.generation import ConversationRequest, token_limit
from server.dialects.reasoning_cipher import ReasoningCipher
from server.dialects.tools import ClientName
from server.dialects.usage import Usage
from server.engine.request import Finished, FinishReason, Timings
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
"""Headers that the HTTP client writes. A request's own would reach another virtual host, or break the framing."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_CHARS = 64
_TOO_LATE = 504


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
    """Return the headers for a server, with a bearer token if there is one."""
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

    def fits(self, tool: McpTool) -> bool:
        """Return whether the tool matches."""
        if self.read_only is not None and tool.is_read_only is not self.read_only:
            return False
        return self.tool_names is None or tool.name in self.tool_names


ALL_TOOLS = ToolFilter.model_construct()  # builds no validator while it is imported
Filter = Annotated[
    ToolFilter, BeforeValidator(lambda given: {"tool_names": given} if isinstance(given, list) else given)
]


class Approval(Body):
    """Which calls the client wants to approve first: those that fit ``always``, and not ``never``."""

    always: Filter = ALL_TOOLS
    never: Filter | None = None

    def needed(self, tool: McpTool) -> bool:
        """Return whether a call of the tool needs the client's approval."""
        return self.always.fits(tool) and not (self.never is not None and self.never.fits(tool))


NO_APPROVAL = Approval.model_construct(never=ALL_TOOLS)


@dataclass(slots=True)
class McpRequest:
    """A server as the body of a request names it."""

    label: str
    at: str  # this path and the next ones are in the body
    label_at: str
    url: str = ""  # without one it is a configured server
    url_at: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    description: str = ""
    allowed: Callable[[McpTool], bool] = ALL_TOOLS.fits
    approval: Approval = NO_APPROVAL
    known: tuple[McpTool, ...] | None = None  # its tools, if the conversation has a list of them
    is_listed: bool = True  # the reply lists them
    server: McpServer | None = None  # this and the rest are set when it has been asked for its tools
    tools: tuple[McpTool, ...] = ()  # those that the request allows
    fault: McpFault | None = None  # why they could not be listed


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that the model may call."""

    server: McpServer
    tool: McpTool
    needs_approval: bool = False


def check_labels(requests: Sequence[McpRequest], field_name: str) -> None:
    """Raise `InvalidRequest` where there are too many servers or two with one label."""
    if len(requests) > MAX_SERVERS:
        raise invalid(field_name, f"must have at most {MAX_SERVERS} MCP servers")
    labels: set[str] = set()
    for request in requests:
        if request.label in labels:
            raise invalid(request.label_at, "two MCP servers have the same label")
        labels.add(request.label)


def function_name(label: str, tool: str) -> str:
    """Return the model's name of a tool: characters that tool formats can't parse become underscores."""
    return f"{_OTHER.sub('_', label)}__{_OTHER.sub('_', tool)}"[:_MAX_NAME_CHARS]


def _names(tools: object) -> Iterator[str]:
    """Yield the names of functions in ``tools``; the members of a namespace have its name before theirs."""
    for _, entry in dicts_in(tools):
        yield str(entry.get("name"))
        yield from (f"{entry.get('name')}__{tool.get('name')}" for _, tool in dicts_in(entry.get("tools")))


class ServerTools:
    """The tools of a request's MCP servers, which this server calls, and the remaining limits of the calls."""

    def __init__(self, servers: McpServers, requested: Sequence[McpRequest] = (), own: object = None) -> None:
        """Name the tools of the `requested` servers. Tools with equal names, or with those of functions in the body's
        `own` tools, get a number.
        """
        self.requested, self.left_rounds, self.left_s = requested, servers.rules.max_rounds, servers.rules.max_s
        self.left_calls: int | None = None  # None = unlimited
        self.tools: dict[str, CallableTool] = {}  # by the model's names
        # As the model sees them, by the path of their server; the first one of a server describes the server, too.
        self.functions: dict[str, list[tuple[Tool, ClientName]]] = {}
        self._servers = servers
        taken, numbers = set(_names(own)), Counter[str]()
        for each in requested:
            assert each.server is not None, "the server has been asked for its tools"
            about = each.description or each.server.description
            functions = self.functions[each.at] = []
            for tool in each.tools:
                name = function_name(each.label, tool.name)
                stem = name[: _MAX_NAME_CHARS - 5]
                while name in self.tools or name in taken:
                    numbers[stem] += 1
                    name = f"{stem}_{numbers[stem] + 1}"
                self.tools[name] = CallableTool(each.server, tool, each.approval.needed(tool))
                description = "\n\n".join(filter(None, [about, tool.description]))
                function = Tool(name, description, {**tool.schema, "type": "object"}, at=each.at)
                functions.append((function, ClientName(tool.name, each.label)))
                about = ""

    async def results(self, calls: Sequence[Call]) -> AsyncGenerator[tuple[Call, McpResult], None]:
        """Yield calls with their results in the order of completion. Cancelling it cancels running calls."""
        self.left_rounds -= 1
        began = time.monotonic()
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
            self.left_s -= time.monotonic() - began

    async def _call(self, call: Call) -> McpResult:
        known = self.tools.get(call.name)
        try:
            if known is None:
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
                return await self._servers.call(known.server, known.tool.name, arguments)
        except McpFault as fault:
            return McpResult(fault=fault)
        except TimeoutError:
            return McpResult(fault=McpFault("the calls of this response took too long", "http", _TOO_LATE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest(ConversationRequest):
    """A request to a model that may call tools of MCP servers."""

    names: Mapping[str, ClientName]  # the client's names of functions, by the model's
    cipher: ReasoningCipher
    server_tools: ServerTools | None = None
    listings: Sequence[Json] = ()  # lists of these tools, with which the output begins


@dataclass(frozen=True, slots=True)
class GivenCalls:
    """The `OutputParser` of a round without generation, whose message consists of ``calls``."""

    calls: Sequence[Call]

    def feed(self, _: str) -> list[Piece]:
        return []

    def finish(self, **_: bool) -> list[Piece]:
        found: list[Piece] = []
        for index, call in enumerate(self.calls):
            found += ToolCallBegin(index, call.id, call.name), ToolCallArguments(index, call.arguments)
        return found


_NOT_GENERATED = Finished(0, FinishReason.EOS, "", 0, 0, 0, Timings(), -1, -1)


R = TypeVar("R", bound=ToolRequest)


class RoundWriter(Writer, Generic[R]):
    """Writes a reply of several rounds, calls the tools of each round and creates the next one.

    A writer may change the ids of calls when they begin: those that the reply has are those of the conversation.
    """

    names_results = False  # whether results in the conversation have the names of their tools

    def __init__(self, request: R, request_id: str, parser: NewParser, approved: Container[str] | None = None) -> None:
        """`approved`: ids of the calls that the client has approved, of which the first round consists; None if that
        round generates.
        """
        self.request, self._id, self._tools = request, request_id, request.server_tools
        self.server_tools: Mapping[str, CallableTool] = {} if self._tools is None else self._tools.tools
        self.said = Assembler(parser())  # the message of the current round
        self.conversation = request.conversation  # what the round answers
        self.approved, self._is_given = approved or (), approved is not None
        self._earlier = Usage()  # of earlier rounds
        self._results: list[Message] = []

    @abstractmethod
    def completed(self, call: Call, result: McpResult) -> list[bytes]:
        """Take the result of a call; return its events."""

    @property
    def usage(self) -> Usage:
        """The token counts of all rounds so far."""
        return self._earlier + Usage.of([(0, self.said.finished)], self.said.n_reasoning_tokens)

    @property
    def is_cut_off(self) -> bool:
        """Whether a limit ended the round."""
        return self.said.finished.reason is FinishReason.LIMIT

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to execute or to approve calls."""
        return not all(map(self._makes, self.said.calls))

    def next_round(self, parser: NewParser) -> None:
        """Continue with another round of generation."""
        self._earlier = self.usage
        self.said = Assembler(parser())

    async def act(self) -> AsyncGenerator[bytes, None]:
        """See `Writer`. None are called if a limit cut the round off."""
        if self._is_given:
            self._is_given = False
            for event in self.feed(0, _NOT_GENERATED):
                yield event
        made = [] if self.is_cut_off else [item for item in self.said.calls if self._makes(item)]
        calls = [Call(item.name, item.text, item.id) for item in made]
        self._results = []
        if not calls:
            return
        assert self._tools is not None, "only tools of servers are called here"
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
        assert limits is not None, "a server's tools were called"
        if limits.left_rounds <= 0 or limits.left_s <= 0 or limits.left_calls == 0:
            tools = replace(tools, choice="none", name="")
        elif tools.choice == "required":
            tools = replace(tools, choice="auto", name="")
        messages = (*self.conversation.messages, self.said.message(), *self._results)
        self.conversation = replace(self.conversation, messages=messages, tools=tools, opens=None, continues=None)
        return self._next_generation, self.conversation.media

    def _next_generation(self, context: Context) -> Generation:
        """Return the next round's generation, with the tokens that earlier rounds left of the request's limit."""
        limit = token_limit(self.request.options, context.model.spec.n_predict)
        left = max(limit - self.usage.completion, 0) if limit >= 0 else limit
        request = replace(self.request, options=self.request.options.model_copy(update={"n_predict": left}))
        output, generated = request.prepare(context, self._id, self.conversation)
        self.next_round(output.parser)
        return Generation([generated], self, output.switch)

    def _makes(self, item: Item) -> bool:
        known = self.server_tools.get(item.name)
        return known is not None and (not known.needs_approval or item.id in self.approved)


def tools_of(listed: object) -> tuple[McpTool, ...]:
    """Return the tools of a list that a client sent back, without invalid ones."""
    found = []
    for _, given in dicts_in(listed):
        match given:
            case {"name": str(name), "input_schema": dict(schema), **more}:
                notes = more.get("annotations")
                about = text_in(more, "description")
                found.append(McpTool(name, about, schema, notes if isinstance(notes, dict) else None))
    return tuple(found)


def shown_tool(tool: McpTool) -> Json:
    """Return a tool as replies list it."""
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
