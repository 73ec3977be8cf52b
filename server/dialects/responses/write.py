"""Writes a ``response`` object with OpenAI's and llama-server's fields, whole or as typed events::

    event: response.output_text.delta
    data: {"type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_x", ..., "delta": "Hi"}

The order is OpenAI's: ``response.created``, in the background ``response.queued``, ``response.in_progress``; for each
item ``response.output_item.added``, the events of its part, ``response.output_item.done``; at the end
``response.completed`` or ``response.incomplete``. There is no ``[DONE]``. llama-server's ``timings`` and
``prompt_progress`` are additional fields (server-task.cpp, to_json_oaicompat_resp).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from server.chat.assembler import Delta, Item, Kind, NewParser
from server.chat.conversation import Call
from server.dialects import common as wire
from server.dialects.common import Json, random_id
from server.dialects.custom_tools import input_parser
from server.dialects.errors import CONTEXT_EXCEEDED
from server.dialects.mcp import CallableTool, RoundWriter
from server.dialects.responses.tools import result_fields
from server.dialects.tools import ClientName
from server.engine.request import Event, Finished, Progress, Started, Text, TokenLogprob
from server.mcp.servers import McpResult

if TYPE_CHECKING:
    from server.dialects.responses.parse import ResponseRequest

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemType(NamedTuple):
    """The format of an item type."""

    prefix: str  # of the item's id
    delta: str = ""  # event name without ``.delta`` or ``.done``; "" for a call that is sent when it is complete
    text: str = ""  # the member with a call's text; for other items, the type of their only part
    part: str = ""  # event name of this part without ``.added`` or ``.done``
    number: str = ""  # the member with the index of the part


ITEM_TYPES = {
    "message": ItemType("msg_", "response.output_text", "output_text", "response.content_part", "content_index"),
    "reasoning": ItemType("rs_", "response.reasoning_text", "reasoning_text", "response.content_part", "content_index"),
    "function_call": ItemType("fc_", "response.function_call_arguments", "arguments"),
    "custom_tool_call": ItemType("ctc_", "response.custom_tool_call_input", "input"),
    "mcp_call": ItemType("mcp_", "response.mcp_call_arguments", "arguments"),
    "mcp_approval_request": ItemType("mcpr_"),
    "compaction": ItemType("cmp_"),
}
"""Types of other calls are in `tool_types`."""
_SUMMARY = ItemType(
    *("rs_", "response.reasoning_summary_text", "summary_text", "response.reasoning_summary_part", "summary_index")
)
_KINDS = {Kind.TEXT: "message", Kind.REASONING: "reasoning", Kind.CALL: "function_call"}


class OutputItem:
    """An output item. ``index``: its position in the output."""

    def __init__(self, item: Item, index: int, writer: "ResponseWriter") -> None:
        request = writer.request
        self.item, self.index, self.request = item, index, request
        self.client = request.names.get(item.name) or ClientName(item.name)
        self.server_tool = writer.server_tools.get(item.name)
        self.is_approved = item.id in writer.approved
        self.outcome: Json | None = None  # members for the result of a call
        self.is_call = item.kind is Kind.CALL
        if self.is_call:
            item.id = item.id or f"call_{random_id()}"
        self._encrypted: str | None = None
        self.type = _KINDS[item.kind]
        if self.client.custom:
            self.type = "custom_tool_call"
        elif self.server_tool is not None:
            needs_approval = self.server_tool.needs_approval and not self.is_approved
            self.type = "mcp_approval_request" if needs_approval else "mcp_call"
        if self.client.type is not None:
            self.type, self.row = self.client.type.call, ItemType(self.client.type.prefix)
        else:
            summarizes = self.type == "reasoning" and request.options.summary is not None
            self.row = _SUMMARY if summarizes else ITEM_TYPES[self.type]
        self.id = self.row.prefix + random_id()
        # The members of events that identify the item and its part.
        self.place: Json = {"item_id": self.id, "output_index": index} | ({} if self.is_call else {self.row.number: 0})

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> list[Json]:
        return wire.probabilities(tokens, after_sampling=bool(self.request.options.post_sampling_probs))

    def part(self) -> Json:
        """Return the only part of an item that is no call."""
        part: Json = {"type": self.row.text, "text": self.item.text}
        if self.type == "message":
            part |= {"annotations": [], "logprobs": self.logprobs(self.item.logprobs)}
        return part

    def body(self, status: ItemStatus) -> Json:
        """Return the item for the reply. In progress, it has no content."""
        body: Json = {"id": self.id, "type": self.type, "status": status}
        if (row := self.client.type) is not None:  # an incomplete call must not be executed
            arguments = row.read(self.item.text) if status == "completed" else None
            unfinished = status != "in_progress" and arguments is None
            members = {"status": row.unfinished if unfinished else status, "call_id": self.item.id}
            return body | members | row.body(arguments)
        if self.server_tool is not None:
            return self._server_call(self.server_tool, status)
        if self.is_call:
            namespace = {"namespace": self.client.namespace} if self.client.namespace else {}
            return body | {self.row.text: self.item.text, "call_id": self.item.id, "name": self.client.name} | namespace
        parts = [] if status == "in_progress" else [self.part()]
        if self.type == "message":
            return body | {"content": parts, "role": "assistant"}
        if self._encrypted is None and status != "in_progress" and self.request.options.encrypts_reasoning:
            self._encrypted = self.request.cipher.encrypt(self.item.text)
        content = {"content": [], "summary": parts} if self.row is _SUMMARY else {"content": parts, "summary": []}
        return body | content | {"encrypted_content": self._encrypted}

    def _server_call(self, tool: CallableTool, status: ItemStatus) -> Json:
        """Return a call that this server makes, or an approval request. A call without an outcome was not made."""
        body: Json = {"id": self.id, "type": self.type, "arguments": self.item.text}
        body |= {"name": tool.tool.name, "server_label": tool.server.label}
        if self.type == "mcp_approval_request":
            return body
        body["status"] = "incomplete" if status == "completed" else status
        body["approval_request_id"] = self.item.id if self.is_approved else None
        return body | (self.outcome or {"output": None, "error": None})


def response_body(fields: Json, status: str, output: Sequence[Json] = (), *, stored: bool = True) -> Json:
    """Return a response object. `fields`: members that repeat the request. `stored`: the client may retrieve it."""
    return {
        **fields,
        "object": "response",
        "status": status,
        "output": list(output),
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
        "store": stored,
        "usage": None,
    }


class ResponseWriter(RoundWriter["ResponseRequest"]):
    """Writes a response.

    White space between items is dropped. `fields`: members that are the same in every state of the response. `prefill`:
    content at the end of the prompt, which the output repeats.
    """

    def __init__(self, request: "ResponseRequest", fields: Json, parser: NewParser, prefill: str = "") -> None:
        self._custom = frozenset(name for name, client in request.names.items() if client.custom)
        approved = frozenset(call.id for call in request.approved) or None
        super().__init__(request, fields["id"], input_parser(parser, self._custom), approved)
        self._inputs = request.input_items
        if prefill:  # the output repeats the continued message
            self.conversation = replace(self.conversation, messages=self.conversation.messages[:-1])
            self._inputs = self._inputs[:-1]
        self._fields, self._prefill = fields, prefill
        self._before = [*request.listings]  # the output before this round
        self._items: list[OutputItem] = []  # of this round
        self._by_item: dict[int, OutputItem] = {}  # by the id() of the assembler's item
        self._blank: list[Delta] = []  # white space at the start of a text
        self._has_begun = False
        self._n_events = N_QUEUED_EVENTS if request.options.background else 0
        self._open: OutputItem | None = None

    @cached_property
    def final(self) -> Json:
        incomplete = self.is_truncated and self.request.options.generate is not False
        body = self._response("incomplete" if incomplete else "completed", [*self._before, *self._finished_items()])
        details = {"reason": "max_output_tokens"} if incomplete else None
        return body | {
            "completed_at": int(time.time()),
            "usage": self.usage.responses(),
            "incomplete_details": details,
        }

    def _response(self, status: str, output: Sequence[Json]) -> Json:
        return response_body(self._fields, status, output, stored=self.request.options.stored)

    def _finished_items(self) -> list[Json]:
        """Return the items of the round. If a limit truncated the round, the last item is incomplete."""
        last = self._last_status
        return [item.body("completed" if item is not self._items[-1] else last) for item in self._items]

    @property
    def _last_status(self) -> ItemStatus:
        return "incomplete" if self.is_truncated else "completed"

    def next_round(self, parser: NewParser) -> None:
        self._before += self._finished_items()
        self._items, self._prefill = [], ""
        super().next_round(input_parser(parser, self._custom))

    def completed(self, call: Call, result: McpResult) -> list[bytes]:
        item = next(item for item in self._items if item.item.id == call.id)
        item.outcome = result_fields(result)
        kind = "completed" if item.outcome["status"] == "completed" else "failed"
        return [self._event(f"response.mcp_call.{kind}", item.place), self._item("done", item, "completed")]

    async def commit(self) -> None:
        """Store the response with the items of its input."""
        if self.request.store is not None:
            self.final["store"] = await self.request.store(self.final, self._inputs)

    def body(self) -> Json:
        return self.final

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        match event:
            case Text():
                events = self._written(self.assembler.feed(event))
                return [*events[:-1], *(wire.extended(last, wire.timed(event.timings)) for last in events[-1:])]
            case Started():
                return self._begin() + self._written(self.assembler.begin(self._prefill))
            case Progress():
                started = self._begin()
                return [*started, self._event("response.in_progress", self._in_progress() | wire.progress(event))]
            case Finished():
                written = self._begin() + self._written(self.assembler.finish(event))
                if not self._items and self.assembler.items:  # only white space
                    item = self.assembler.items[0]
                    written += self._added(self._new_item(item), item.text)
                return written + self._close(self._last_status)
        return []

    def finish(self) -> list[bytes]:
        not_made = [each for each in self._items if each.type == "mcp_call" and each.outcome is None]
        done = [self._item("done", item, "incomplete") for item in not_made]
        last = {"response": self.final, "timings": wire.timings(self.assembler.finished.timings)}
        return [*done, self._event(f"response.{self.final['status']}", last)]

    def failure(self, status: int, body: Json) -> bytes:
        """Return the end of a failed stream. `body`: an error with ``message``, ``type`` and ``param``."""
        started = b"".join(self._begin())
        done = [*self._before, *(item.body("incomplete") for item in self._items)]
        return started + _failed(status, body, self._response("failed", done), self._n_events)

    def ping(self) -> bytes:
        """Return a keep-alive event, or the first events of the stream.

        Comments do not reset the event timeouts of clients such as Codex. This event is OpenAI's own, and its SDKs
        accept it (openai-node #1965).
        """
        return b"".join(self._begin()) or self._event("keepalive", {})

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        states = ("created", "in_progress")[bool(self.request.options.background) :]
        events = [self._event(f"response.{state}", self._in_progress()) for state in states]
        for index, item in enumerate(self.request.listings):  # complete lists of tools
            kind, place = f"response.{item['type']}", {"item_id": item["id"], "output_index": index}
            added = {"output_index": index, "item": {**item, "tools": [], "error": None}}
            events += (
                self._event("response.output_item.added", added),
                self._event(f"{kind}.in_progress", place),
                self._event(f"{kind}.{'failed' if item['error'] else 'completed'}", place),
                self._event("response.output_item.done", {"output_index": index, "item": item}),
            )
        return events

    def _in_progress(self) -> Json:
        return {"response": self._response("in_progress", [])}

    def _written(self, deltas: Sequence[Delta]) -> list[bytes]:
        events: list[bytes] = []
        for delta in deltas:
            item, text, tokens = self._by_item.get(id(delta.item)), delta.text, delta.logprobs
            if item is None and delta.item.kind is Kind.TEXT:
                self._blank = [*([] if delta.begins else self._blank), delta]
                text = "".join(each.text for each in self._blank)
                if not text.strip():
                    continue
                tokens = [token for each in self._blank for token in each.logprobs]
            events += self._added(item or self._new_item(delta.item), text, tokens)
        return events

    def _new_item(self, source: Item) -> OutputItem:
        item = self._by_item[id(source)] = OutputItem(source, len(self._before) + len(self._items), self)
        self._items.append(item)
        return item

    def _added(self, item: OutputItem, text: str, tokens: Sequence[TokenLogprob] = ()) -> list[bytes]:
        """Return the events for more text of an item. The first text may be ""."""
        if not self.streams:
            return []
        events = [] if item is self._open else self._close("completed") + self._start(item)
        if not text or not item.row.delta:
            return events
        logprobs = {"logprobs": item.logprobs(tokens)} if item.type == "message" else {}
        return [*events, self._event(f"{item.row.delta}.delta", {**item.place, "delta": text, **logprobs})]

    def _start(self, item: OutputItem) -> list[bytes]:
        self._open = item
        if not item.row.delta:
            return [self._item("added", item, "in_progress")]
        empty = {item.row.text: ""} if item.is_call else {}
        added = {"output_index": item.index, "item": item.body("in_progress") | empty}
        events = [self._event("response.output_item.added", added)]
        if item.type == "mcp_call":
            events.append(self._event("response.mcp_call.in_progress", item.place))
        if not item.is_call:
            part = item.part() | {"text": ""} | ({"logprobs": []} if item.type == "message" else {})
            events.append(self._event(f"{item.row.part}.added", item.place | {"part": part}))
        return events

    def _close(self, status: ItemStatus) -> list[bytes]:
        item, self._open = self._open, None
        if item is None:
            return []
        if not item.row.delta:
            return [*self._commands(item, status), self._item("done", item, status)]
        done, place = f"{item.row.delta}.done", item.place
        if item.type == "mcp_call":  # the item is done after the call
            return [self._event(done, place | {"arguments": item.item.text})]
        if item.is_call:
            name = {"name": item.client.name} if item.type == "function_call" else {}
            events = [self._event(done, place | name | {item.row.text: item.item.text})]
        else:
            part = item.part()
            members = {name: part[name] for name in ("text", "logprobs") if name in part}
            events = [self._event(done, place | members), self._event(f"{item.row.part}.done", place | {"part": part})]
        return [*events, self._item("done", item, status)]

    def _item(self, state: str, item: OutputItem, status: ItemStatus) -> bytes:
        return self._event(f"response.output_item.{state}", {"output_index": item.index, "item": item.body(status)})

    def _commands(self, item: OutputItem, status: ItemStatus) -> list[bytes]:
        """Return the events for each command of a complete shell call; other calls have none."""
        commands = item.body(status)["action"]["commands"] if item.type == "shell_call" else ()
        return [
            self._event(
                f"response.shell_call_command.{kind}", {"output_index": item.index, "command_index": number, **members}
            )
            for number, command in enumerate(commands)
            for kind, members in (
                ("added", {"command": ""}),
                ("delta", {"delta": command}),
                ("done", {"command": command}),
            )
        ]

    def _event(self, kind: str, body: Json) -> bytes:
        if not self.streams:
            return b""
        self._n_events += 1
        return wire.typed_event({"type": kind, "sequence_number": self._n_events - 1, **body})


EARLY_PING = wire.typed_event({"type": "keepalive"})
"""A keep-alive event while the model is loaded, before the response exists."""


N_QUEUED_EVENTS = 2


def queued_events(queued: Json) -> bytes:
    """Return the first events of a background response. `ResponseWriter` writes those that follow."""
    events = ({"type": f"response.{kind}", "sequence_number": n} for n, kind in enumerate(("created", "queued")))
    return b"".join(wire.typed_event({**event, "response": queued}) for event in events)


def failed_early(status: int, body: Json, queued: Json | None = None) -> bytes:
    """Return the end of a stream that failed before its first event, or after those of a `queued` response."""
    response = {"object": "response", "output": []} if queued is None else queued
    number = 0 if queued is None else N_QUEUED_EVENTS
    return _failed(status, body, {**response, "status": "failed"}, number)


def _failed(status: int, body: Json, response: Json, number: int) -> bytes:
    """Return the last two events of a stream, numbered from `number`.

    Agents react to the code: Codex compacts its conversation for ``context_length_exceeded``, waits for
    ``rate_limit_exceeded``, ends its turn for ``invalid_prompt``, and retries for any other
    (codex-rs/codex-api/src/sse/responses.rs).
    """
    error = body["error"]
    members = {"code": error_code(status, error), "message": error.get("message", "")}
    last = {"type": "error", "sequence_number": number, **members, "param": error.get("param")}
    failed = {"type": "response.failed", "sequence_number": number + 1, "response": {**response, "error": members}}
    return wire.typed_event(last) + wire.typed_event(failed)


def error_code(status: int, error: Mapping[str, Any]) -> str:
    if error.get("type") == "exceed_context_size_error":
        return CONTEXT_EXCEEDED
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
