"""Write the ``response`` object, with OpenAI's and llama-server's fields, whole or as typed events::

    event: response.output_text.delta
    data: {"type": "response.output_text.delta", "item_id": "msg_x", ..., "delta": "Hi", "sequence_number": 4}

The order is OpenAI's: ``response.created``, ``response.in_progress``; for each item ``response.output_item.added``, its
part and deltas, what is done; at the end ``response.completed`` or ``response.incomplete``. There is no ``[DONE]``.
llama-server's ``timings`` and ``prompt_progress`` are additional fields (server-task.cpp, to_json_oaicompat_resp).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any

import orjson

from server.chat.conversation import Message
from server.dialects import common as wire
from server.dialects.common import Json
from server.dialects.dialect import Writer
from server.dialects.errors import CONTEXT_EXCEEDED
from server.dialects.mcp import Outcome, ServerCall
from server.dialects.responses.items import (
    Addition,
    ItemStatus,
    ItemType,
    OutputItem,
    OutputItems,
    cut_off,
    last_status,
)
from server.dialects.responses.mcp import outcome_fields
from server.dialects.usage import Usage
from server.engine.request import Event, Finished, Progress, Started, Text

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
