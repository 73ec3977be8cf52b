"""Write the ``response`` object, with OpenAI's and llama-server's fields, whole or as typed events::

    event: response.output_text.delta
    data: {"type": "response.output_text.delta", "item_id": "msg_x", ..., "delta": "Hi", "sequence_number": 4}

The order is OpenAI's: ``response.created``, ``response.in_progress``; for each item ``response.output_item.added``, its
part and deltas, what is done; at the end ``response.completed`` or ``response.incomplete``. There is no ``[DONE]``.
llama-server's ``timings`` and ``prompt_progress`` are additional fields (server-task.cpp, to_json_oaicompat_resp).
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal

import orjson

from server.chat.assembler import Assembler, Delta, Item, Kind
from server.chat.conversation import Call, Message
from server.dialects import common as wire
from server.dialects.common import Json, random_id
from server.dialects.custom_tools import CustomInput
from server.dialects.dialect import Writer
from server.dialects.errors import CONTEXT_EXCEEDED
from server.dialects.mcp import CallableTool, Outcome, ServerCall
from server.dialects.responses.mcp import outcome_fields
from server.dialects.responses.tools import ClientTools
from server.dialects.tool_types import ToolType
from server.dialects.tools import ClientName
from server.dialects.usage import Usage
from server.engine.request import Event, Finished, FinishReason, Progress, Started, Text

ItemType = str
"""``message``, ``reasoning``, ``function_call``, ``custom_tool_call``, or the call of a type of `tool_types`."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]
_PREFIXES: dict[ItemType, str] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
}
PartType = Literal["output_text", "reasoning_text", "summary_text"]
Encrypt = Callable[[str], str]
_TYPES: dict[Kind, ItemType] = {Kind.TEXT: "message", Kind.REASONING: "reasoning", Kind.CALL: "function_call"}


NO_SERVER_TOOLS: Mapping[str, CallableTool] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class OutputItem:
    """One output item.

    ``index``: its position in the output. ``client``: the client's name of the called tool. ``encrypt``: creates the
    ``encrypted_content`` of reasoning, None for none. ``summarizes``: the reasoning text is the item's summary.
    ``server_tool``: the tool that this server calls. ``outcome``: the members that the call's outcome adds to the
    item.
    """

    said: Item
    index: int
    client: ClientName
    after_sampling: bool = False
    encrypt: Encrypt | None = None
    summarizes: bool = False
    type: ItemType = "message"
    id: str = ""
    call_id: str = ""
    custom: CustomInput = field(default_factory=CustomInput)
    _encrypted: str | None = None
    server_tool: CallableTool | None = None
    outcome: Json | None = None

    def __post_init__(self) -> None:
        self.type = _TYPES[self.said.kind]
        if self.said.kind is Kind.CALL:
            self.type = "custom_tool_call" if self.client.custom else "function_call"
            if self.client.type is not None:
                self.type = self.client.type.call
            if self.server_tool is not None:
                self.type = "mcp_approval_request" if self.server_tool.needs_approval else "mcp_call"
            self.call_id = self.said.id or f"call_{random_id()}"
        prefix = _PREFIXES[self.type] if self.client.type is None else self.client.type.prefix
        self.id = prefix + random_id()

    @property
    def is_call(self) -> bool:
        """Whether it has no parts."""
        return self.said.kind is Kind.CALL

    @property
    def text(self) -> str:
        """All of its text: of a call, its arguments, of a custom tool's, its input."""
        return self.custom.text if self.type == "custom_tool_call" else self.said.text

    @property
    def part_type(self) -> PartType:
        """The type of its one part; a call has none."""
        if self.type == "message":
            return "output_text"
        return "summary_text" if self.summarizes else "reasoning_text"

    def part(self) -> Json:
        """Return its only part; a call has none."""
        part: Json = {"type": self.part_type, "text": self.text}
        return part | {"annotations": [], "logprobs": self.logprobs} if self.type == "message" else part

    @property
    def logprobs(self) -> list[Json]:
        """Those of all its tokens, where they are wanted."""
        return wire.probabilities(self.said.logprobs, after_sampling=self.after_sampling)

    def body(self, status: ItemStatus) -> Json:
        """The item as replies show it; one that has just begun has no content yet."""
        item: Json = {"id": self.id, "type": self.type, "status": status}
        if self.client.type is not None:
            return item | self._typed_call(self.client.type, status)
        if self.server_tool is not None:
            return self._server_call(self.server_tool, status)
        if self.is_call:
            space = {"namespace": self.client.namespace} if self.client.namespace else {}
            key = "input" if self.type == "custom_tool_call" else "arguments"
            return item | {key: self.text, "call_id": self.call_id, "name": self.client.name} | space
        parts = [] if status == "in_progress" else [self.part()]
        if self.type == "message":
            return item | {"content": parts, "role": "assistant"}
        if self.encrypt is not None and self._encrypted is None and status != "in_progress":
            self._encrypted = self.encrypt(self.text)
        shown = {"content": [], "summary": parts} if self.summarizes else {"content": parts, "summary": []}
        return item | shown | {"encrypted_content": self._encrypted}

    def _typed_call(self, row: ToolType, status: ItemStatus) -> Json:
        """The members of a call of a type of `tool_types`. One that is not complete must not be executed."""
        arguments = row.read(self.text) if status == "completed" else None
        unfinished = status != "in_progress" and arguments is None
        return {"status": row.unfinished if unfinished else status, "call_id": self.call_id, **row.body(arguments)}

    def _server_call(self, known: CallableTool, status: ItemStatus) -> Json:
        """Return a call that this server makes or lets the client approve. A call without an outcome was not made."""
        item: Json = {"id": self.id, "type": self.type, "name": known.tool.name, "arguments": self.text}
        item["server_label"] = known.server.label
        if self.type == "mcp_approval_request":
            return item
        status = "incomplete" if status == "completed" else status
        return (
            item | {"status": status, "approval_request_id": None, "output": None, "error": None} | (self.outcome or {})
        )


@dataclass(frozen=True, slots=True)
class Addition:
    """More text of an item, "" where one begins without; with the log probabilities of its tokens, if wanted."""

    item: OutputItem
    text: str
    logprobs: Sequence[Json] = ()


class OutputItems:
    """Converts deltas to items.

    Whitespace between items is dropped. ``server_tools``: the tools that this server calls, by the model's names.
    ``first_index``: the position of the first item in the output.
    """

    def __init__(
        self,
        said: Assembler,
        tools: ClientTools,
        *,
        after_sampling: bool = False,
        encrypt: Encrypt | None = None,
        summarizes: bool = False,
        server_tools: Mapping[str, CallableTool] = NO_SERVER_TOOLS,
        first_index: int = 0,
    ) -> None:
        self.items: list[OutputItem] = []
        self._said = said
        self._tools = tools
        self._after_sampling = after_sampling
        self._encrypt, self._summarizes = encrypt, summarizes
        self._server_tools, self._first_index = server_tools, first_index
        self._shown: dict[int, OutputItem] = {}  # by the identity of the message item
        self._blank: list[Delta] = []  # white space that a text has begun with

    def usage(self, end: Finished) -> Usage:
        """Return the token counts of the round that `end` ended."""
        return Usage.of([(0, end)], self._said.n_reasoning_tokens)

    def message(self) -> Message:
        """The output as a message of the conversation, its calls with the ids of their items."""
        calls = tuple(Call(item.said.name, item.said.text, item.call_id) for item in self.items if item.is_call)
        return replace(self._said.message(), calls=calls)

    def begin(self, text: str) -> list[Addition]:
        """Content that the prompt ends with, which the reply repeats."""
        return self._added(self._said.begin(text))

    def feed(self, event: Text) -> list[Addition]:
        """Take the next text."""
        return self._added(self._said.feed(event))

    def finish(self, end: Finished) -> list[Addition]:
        """Return the events of buffered text."""
        added = [*self._added(self._said.finish(end)), *self._ended()]
        if not self.items and self._said.items:  # nothing but white space
            only = self._said.items[0]
            added.append(Addition(self._open(only), only.text))
        return added

    def bodies(self, end: Finished) -> list[Json]:
        """Every item; where the limit cut the output off, the last one is incomplete."""
        last = last_status(end)
        return [item.body("completed" if item is not self.items[-1] else last) for item in self.items]

    def _added(self, deltas: Sequence[Delta]) -> list[Addition]:
        return [addition for delta in deltas for addition in self._additions(delta)]

    def _additions(self, delta: Delta) -> Iterator[Addition]:
        shown, text = self._shown.get(id(delta.item)), delta.text
        tokens = delta.logprobs
        if shown is None:
            if delta.item.kind is Kind.TEXT:
                self._blank = [*([] if delta.begins else self._blank), delta]
                text = "".join(each.text for each in self._blank)
                if not text.strip():
                    return
                tokens = [token for each in self._blank for token in each.logprobs]
            yield from self._ended()
            shown = self._open(delta.item)
        if shown.type == "custom_tool_call":
            text = shown.custom.feed(text)
        wanted = tokens if shown.type == "message" else ()
        yield Addition(shown, text, wire.probabilities(wanted, after_sampling=self._after_sampling))

    def _ended(self) -> Iterator[Addition]:
        """Return the remaining events of the last item, which has ended."""
        last = self.items[-1] if self.items else None
        if last is not None and last.type == "custom_tool_call" and (rest := last.custom.finish(last.said.text)):
            yield Addition(last, rest)

    def _open(self, said: Item) -> OutputItem:
        item = OutputItem(
            said,
            self._first_index + len(self.items),
            self._tools.named(said.name),
            self._after_sampling,
            self._encrypt,
            self._summarizes,
            server_tool=self._server_tools.get(said.name),
        )
        self._shown[id(said)] = item
        self.items.append(item)
        return item


def cut_off(end: Finished) -> bool:
    """Whether a limit ended the response."""
    return end.reason is FinishReason.LIMIT


def last_status(end: Finished) -> ItemStatus:
    """The status of the item that the response ended with."""
    return "incomplete" if cut_off(end) else "completed"


Keep = Callable[[Json], Awaitable[bool]]
"""Stores a finished response. Returns False if it could not be stored."""


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The members that every state of one response repeats. ``stored``: whether the client may retrieve it.
    ``generates``: whether there is output; a response without output is complete at once.
    """

    fields: Json
    stored: bool = True
    generates: bool = True

    def begun(self) -> Json:
        """The response before its first output."""
        return self._body("in_progress", [])

    def finished(self, output: OutputItems, end: Finished, earlier: "EarlierRounds") -> Json:
        """Return the whole response."""
        incomplete = self.is_incomplete(end)
        body = self._body("incomplete" if incomplete else "completed", [*earlier.items, *output.bodies(end)])
        body["completed_at"] = int(time.time())
        body["usage"] = (earlier.usage + output.usage(end)).responses()
        if incomplete:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        return body

    def is_incomplete(self, end: Finished) -> bool:
        """Whether a limit cut the output off."""
        return cut_off(end) and self.generates

    def failed(self, output: OutputItems, earlier: "EarlierRounds", code: str, message: str) -> Json:
        """The response up to a fault."""
        done = [*earlier.items, *(item.body("incomplete") for item in output.items)]
        return self._body("failed", done) | {"error": {"code": code, "message": message}}

    def _body(self, status: str, output: list[Json]) -> Json:
        return {
            **self.fields,
            "object": "response",
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "completed_at": None,
            "store": self.stored,
            "usage": None,
        }


@dataclass(slots=True)
class EarlierRounds:
    """The earlier rounds of a response: items and token counts."""

    items: list[Json] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def add(self, output: OutputItems, end: Finished) -> None:
        """Add a round that has ended."""
        self.items += output.bodies(end)
        self.usage += output.usage(end)


_CALL_DELTAS: dict[ItemType, str] = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
    "mcp_call": "response.mcp_call_arguments",
}


def _is_whole(item: OutputItem) -> bool:
    """Return whether an item is a call that has no deltas: it is sent when it is complete."""
    return item.is_call and item.type not in _CALL_DELTAS


def _delta_kind(item: OutputItem) -> str:
    """Return the type of an item's events without ``.delta`` or ``.done``."""
    if item.is_call:
        return _CALL_DELTAS[item.type]
    text = "reasoning_summary_text" if item.part_type == "summary_text" else item.part_type
    return f"response.{text}"


def _part_kind(item: OutputItem) -> str:
    """Return the type of the events of an item's part without ``.added`` or ``.done``."""
    part = "reasoning_summary_part" if item.part_type == "summary_text" else "content_part"
    return f"response.{part}"


class ResponseWriter(Writer):
    """Writes a response. `prefill`: the content that the prompt has begun. `lead`: finished items before the output."""

    def __init__(
        self, frame: ResponseFrame, output: OutputItems, *, prefill: str = "", lead: Sequence[Json] = ()
    ) -> None:
        self._frame = frame
        self._output = output
        self._prefill = prefill
        self._lead = lead
        self._earlier = EarlierRounds(list(lead))
        self._end: Finished | None = None
        self._n_events = 0
        self._open: OutputItem | None = None
        self._head = b""  # the bytes before a delta of the open item

    @property
    def end(self) -> Finished:
        """The end of the current round."""
        assert self._end is not None, "the response has not finished"
        return self._end

    @cached_property
    def final(self) -> Json:
        """The finished response."""
        return self._frame.finished(self._output, self.end, self._earlier)

    @property
    def n_predicted(self) -> int:
        """Tokens that were generated so far."""
        return self._earlier.usage.completion + self.end.n_predicted

    @property
    def n_items(self) -> int:
        """Items of the output so far."""
        return len(self._earlier.items) + len(self._output.items)

    def next_round(self, output: OutputItems) -> None:
        """Continue with another round of generation."""
        self._earlier.add(self._output, self.end)
        self._output, self._end, self._prefill = output, None, ""

    def server_calls(self) -> list[ServerCall]:
        """The calls of the round for this server; none where a limit cut the round off."""
        calls = self._server_items() if not cut_off(self.end) else []
        return [ServerCall(item.call_id, item.said.name, item.text) for item in calls]

    def completed(self, call: ServerCall, outcome: Outcome) -> list[bytes]:
        """Take the outcome of a call; return its events."""
        item = next(item for item in self._server_items() if item.call_id == call.id)
        item.outcome = outcome_fields(outcome)
        return self._ended(item)

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to execute or to approve calls."""
        return any(item.is_call and item.type != "mcp_call" for item in self._output.items)

    def message(self) -> Message:
        """The round as a message of the conversation."""
        return self._output.message()

    def _server_items(self) -> list[OutputItem]:
        return [item for item in self._output.items if item.type == "mcp_call"]

    def body(self) -> Json:
        """Return the whole response, after it has finished."""
        return self.final

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        """The events that follow from one of the engine's."""
        match event:
            case Text():
                return self._timed(self._added(self._output.feed(event)), event)
            case Started():
                return self._begin() + self._added(self._output.begin(self._prefill))
            case Progress():
                begun = self._begin()
                return [*begun, self._event("response.in_progress", self._begun() | wire.progress(event))]
            case Finished():
                self._end = event
                return self._begin() + self._added(self._output.finish(event)) + self._close(last_status(event))
        return []

    def finish(self) -> list[bytes]:
        """Return the last events, after the response has finished."""
        not_made = [self._item("done", item, "incomplete") for item in self._server_items() if item.outcome is None]
        last = {"response": self.final, "timings": wire.timings(self.end.timings)}
        return [*not_made, self._event(f"response.{self.final['status']}", last)]

    def failure(self, status: int, body: Json) -> bytes:
        """Return the end of a failed stream: an HTTP `status`, and a `body` with ``message``, ``type``, ``param``.

        Agents act on the code: Codex shortens its conversation on one, waits on another and retries on any other
        except ``invalid_prompt``, which ends its turn (codex-rs/codex-api/src/sse/responses.rs).
        """
        error = body["error"]
        code, message = _code(status, error), error.get("message", "")
        begun = self._begin()
        last = self._event("error", {"code": code, "message": message, "param": error.get("param")})
        failed = {"response": self._frame.failed(self._output, self._earlier, code, message)}
        return b"".join([*begun, last, self._event("response.failed", failed)])

    def ping(self) -> bytes:
        """Return a keep-alive event: clients such as Codex have a timeout for events, and comments don't reset it. This
        is OpenAI's own event, which its SDKs accept (openai-node #1965); the stream's first events precede it.
        """
        return b"".join(self._begin()) or self._event("keepalive", {})

    def _begin(self) -> list[bytes]:
        if self._n_events:
            return []
        begun = [self._event(f"response.{state}", self._begun()) for state in ("created", "in_progress")]
        return [*begun, *(event for index, item in enumerate(self._lead) for event in self._whole(index, item))]

    def _whole(self, index: int, item: Json) -> list[bytes]:
        """Return the events of an item that is complete from the start: a list of tools, or a call of one."""
        kind, place = f"response.{item['type']}", {"item_id": item["id"], "output_index": index}
        empty: Json = {"tools": [], "error": None}
        if item["type"] == "mcp_call":
            empty = {"arguments": "", "output": None, "error": None, "status": "in_progress"}
        events = [
            self._event("response.output_item.added", {"output_index": index, "item": {**item, **empty}}),
            self._event(f"{kind}.in_progress", place),
        ]
        if item["type"] == "mcp_call":
            events.append(self._event(f"{kind}_arguments.done", place | {"arguments": item["arguments"]}))
        events.append(self._event(f"{kind}.{'failed' if item['error'] else 'completed'}", place))
        return [*events, self._event("response.output_item.done", {"output_index": index, "item": item})]

    def _begun(self) -> Json:
        return {"response": self._frame.begun()}

    def _added(self, additions: list[Addition]) -> list[bytes]:
        events = []
        for addition in additions if self.streams else ():
            if addition.item is not self._open:
                events += self._close("completed") + self._start(addition.item)
            if addition.text and not _is_whole(addition.item):
                events.append(self._delta(addition))
        return events

    def _start(self, item: OutputItem) -> list[bytes]:
        self._open = item
        if _is_whole(item):
            return [self._item("added", item, "in_progress")]
        kind = f"{_delta_kind(item)}.delta"
        place = {"type": kind, **self._place(item)}
        self._head = b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(place)[:-1] + b',"delta":'
        added = {"output_index": item.index, "item": item.body("in_progress") | _EMPTY[item.type]}
        events = [self._event("response.output_item.added", added)]
        if item.type == "mcp_call":
            events.append(self._event("response.mcp_call.in_progress", self._place(item)))
        if not item.is_call:
            part = item.part() | {"text": ""} | ({"logprobs": []} if item.type == "message" else {})
            events.append(self._event(f"{_part_kind(item)}.added", self._place(item) | {"part": part}))
        return events

    def _delta(self, addition: Addition) -> bytes:
        logprobs = b""
        if addition.item.type == "message":
            logprobs = b',"logprobs":' + (orjson.dumps(addition.logprobs) if addition.logprobs else b"[]")
        number = b',"sequence_number":%d}\n\n' % self._number()
        return self._head + orjson.dumps(addition.text) + logprobs + number

    def _close(self, status: ItemStatus) -> list[bytes]:
        item, self._open = self._open, None
        if item is None:
            return []
        place = self._place(item)
        if _is_whole(item):
            return [*self._commands(item, status), self._item("done", item, status)]
        done = f"{_delta_kind(item)}.done"
        if item.type == "mcp_call":  # the item is done when the call is made
            return [self._event(done, place | {"arguments": item.text})]
        if item.is_call:
            members = {"input": item.text}
            if item.type == "function_call":
                members = {"name": item.client.name, "arguments": item.text}
            events = [self._event(done, place | members)]
        else:
            text = {"text": item.text} | ({"logprobs": item.logprobs} if item.type == "message" else {})
            events = [
                self._event(done, place | text),
                self._event(f"{_part_kind(item)}.done", place | {"part": item.part()}),
            ]
        return [*events, self._item("done", item, status)]

    def _item(self, state: str, item: OutputItem, status: ItemStatus) -> bytes:
        return self._event(f"response.output_item.{state}", {"output_index": item.index, "item": item.body(status)})

    def _commands(self, item: OutputItem, status: ItemStatus) -> list[bytes]:
        """The events of a shell call's commands, once they are complete; other calls of `tool_types` have none."""
        events = []
        for number, command in enumerate(item.body(status)["action"]["commands"] if item.type == "shell_call" else ()):
            place = {"output_index": item.index, "command_index": number}
            for kind, members in (
                ("added", {"command": ""}),
                ("delta", {"delta": command}),
                ("done", {"command": command}),
            ):
                events.append(self._event(f"response.shell_call_command.{kind}", place | members))
        return events

    def _ended(self, item: OutputItem) -> list[bytes]:
        kind = "completed" if (item.outcome or {}).get("status") == "completed" else "failed"
        return [self._event(f"response.mcp_call.{kind}", self._place(item)), self._item("done", item, "completed")]

    @staticmethod
    def _place(item: OutputItem) -> Json:
        place: Json = {"item_id": item.id, "output_index": item.index}
        if item.is_call:
            return place
        return place | {"summary_index" if item.part_type == "summary_text" else "content_index": 0}

    @staticmethod
    def _timed(events: list[bytes], event: Text) -> list[bytes]:
        """Add the timings to the last event if the client wants them per token."""
        if event.timings is None or not events:
            return events
        timings = wire.members({"timings": wire.timings(event.timings)})
        return [*events[:-1], events[-1].removesuffix(b"}\n\n") + timings + b"}\n\n"]

    def _event(self, kind: str, body: Json) -> bytes:
        if not self.streams:
            return b""
        data = orjson.dumps({"type": kind, "sequence_number": self._number(), **body})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _number(self) -> int:
        self._n_events += 1
        return self._n_events - 1


EARLY_PING = wire.typed_event({"type": "keepalive"})
"""A keep-alive event before the response exists, while its model is loaded."""


def failed_early(status: int, body: Json) -> bytes:
    """Return the end of a stream that failed before its first event."""
    error = body["error"]
    code, message = _code(status, error), error.get("message", "")
    last = {"type": "error", "sequence_number": 0, "code": code, "message": message, "param": error.get("param")}
    response = {"object": "response", "status": "failed", "output": [], "error": {"code": code, "message": message}}
    failed = {"type": "response.failed", "sequence_number": 1, "response": response}
    return wire.typed_event(last) + wire.typed_event(failed)


_EMPTY: dict[ItemType, Json] = {
    "message": {},
    "reasoning": {},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
    "mcp_call": {"arguments": ""},
}


def _code(status: int, error: Mapping[str, Any]) -> str:
    if error.get("type") == "exceed_context_size_error":
        return CONTEXT_EXCEEDED
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
