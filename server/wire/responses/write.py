"""The ``response`` object: OpenAI's fields with llama-server's among them, in one piece or as typed events::

    event: response.output_text.delta
    data: {"type": "response.output_text.delta", "item_id": "msg_x", ..., "delta": "Hi", "sequence_number": 4}

The order is OpenAI's: ``response.created``, ``response.in_progress``; for each item ``response.output_item.added``, its
part and deltas, what is done; at the end ``response.completed`` or ``response.incomplete``. There is no ``[DONE]``.
llama-server's ``timings`` and ``prompt_progress`` stand beside the fields (server-task.cpp, to_json_oaicompat_resp).
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

import orjson

from server.engine.request import Event, Finished, Progress, Started, Text
from server.wire import common as wire
from server.wire.common import CONTEXT_EXCEEDED, Json
from server.wire.responses.items import Addition, ItemStatus, ItemType, OutputItem, OutputItems, cut_off, last_status

Keep = Callable[[Json], Awaitable[bool]]
"""Stores a finished response. Returns False if it could not be stored."""


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What every state of one response repeats.

    ``stored``: whether the client may retrieve it later. ``generates``: whether it is to have any output; one without
    is complete.
    """

    fields: Json
    stored: bool = True
    generates: bool = True

    def begun(self) -> Json:
        """The response before its first output."""
        return self._body("in_progress", [])

    def finished(self, output: OutputItems, end: Finished) -> Json:
        """Return the whole response."""
        incomplete = self.is_incomplete(end)
        body = self._body("incomplete" if incomplete else "completed", output.bodies(end))
        body["completed_at"] = int(time.time())
        body["usage"] = usage(end, output.reasoning_tokens)
        if incomplete:
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        return body

    def is_incomplete(self, end: Finished) -> bool:
        """Whether a limit cut the output off."""
        return cut_off(end) and self.generates

    def failed(self, output: OutputItems, code: str, message: str) -> Json:
        """The response up to a fault."""
        done = [item.body("incomplete") for item in output.items]
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


def usage(end: Finished, n_reasoning: int) -> Json:
    """``usage``. No prices here, so no token counts as written to a cache."""
    return {
        "input_tokens": end.n_prompt,
        "input_tokens_details": {"cached_tokens": end.n_cached, "cache_write_tokens": 0},
        "output_tokens": end.n_predicted,
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": end.n_prompt + end.n_predicted,
    }


class ResponseReply:
    """Collects events into one response; `prefill` is the content that the prompt has begun."""

    def __init__(self, frame: ResponseFrame, output: OutputItems, *, prefill: str = "") -> None:
        self._frame = frame
        self._output = output
        self._output.begin(prefill)
        self._end: Finished | None = None

    def feed(self, _prompt: int, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Text):
            self._output.feed(event)
        elif isinstance(event, Finished):
            self._output.finish(event)
            self._end = event

    @cached_property
    def final(self) -> Json:
        """The finished response."""
        assert self._end is not None, "the response has not finished"
        return self._frame.finished(self._output, self._end)

    def body(self) -> Json:
        """Return the reply, after the response has finished."""
        return self.final


_CALL_DELTAS: dict[ItemType, str] = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
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


class ResponseStream:
    """Feed it every event; send what it returns, then what `finish` returns. `prefill` is the first content."""

    def __init__(self, frame: ResponseFrame, output: OutputItems, *, prefill: str = "") -> None:
        self._frame = frame
        self._output = output
        self._prefill = prefill
        self._n_events = 0
        self._open: OutputItem | None = None
        self._head = b""  # the bytes in front of a delta of the open item
        self._end: Finished | None = None

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

    @cached_property
    def final(self) -> Json:
        """The finished response."""
        assert self._end is not None, "the response has not finished"
        return self._frame.finished(self._output, self._end)

    def finish(self) -> list[bytes]:
        """Return the last event, after the response has finished."""
        assert self._end is not None, "the response has not finished"
        kind = f"response.{self.final['status']}"
        return [self._event(kind, {"response": self.final, "timings": wire.timings(self._end.timings)})]

    def fail(self, status: int, error: Mapping[str, Any]) -> list[bytes]:
        """The end of a stream that can't go on: an HTTP `status`, and an `error` with ``message``, ``type``, ``param``.

        Agents look for the codes: Codex makes its conversation shorter on one, waits on another and asks again on any
        other, but for ``invalid_prompt``, which ends its turn (codex-rs/codex-api/src/sse/responses.rs).
        """
        code, message = _code(status, error), error.get("message", "")
        begun = self._begin()
        told = self._event("error", {"code": code, "message": message, "param": error.get("param")})
        failed = {"response": self._frame.failed(self._output, code, message)}
        return [*begun, told, self._event("response.failed", failed)]

    def ping(self) -> bytes:
        """What shows life: clients such as Codex wait for events, and don't count comments.

        OpenAI's own, which its SDKs know (openai-node #1965); the stream's first events come in front of it.
        """
        return b"".join(self._begin()) or self._event("keepalive", {})

    def _begin(self) -> list[bytes]:
        if self._n_events:
            return []
        return [self._event(f"response.{state}", self._begun()) for state in ("created", "in_progress")]

    def _begun(self) -> Json:
        return {"response": self._frame.begun()}

    def _added(self, additions: list[Addition]) -> list[bytes]:
        events = []
        for addition in additions:
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
        if item.is_call:
            told = {"input": item.text}
            if item.type == "function_call":
                told = {"name": item.client.name, "arguments": item.text}
            events = [self._event(done, place | told)]
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
            for kind, told in (
                ("added", {"command": ""}),
                ("delta", {"delta": command}),
                ("done", {"command": command}),
            ):
                events.append(self._event(f"response.shell_call_command.{kind}", place | told))
        return events

    @staticmethod
    def _place(item: OutputItem) -> Json:
        place: Json = {"item_id": item.id, "output_index": item.index}
        if item.is_call:
            return place
        return place | {"summary_index" if item.part_type == "summary_text" else "content_index": 0}

    @staticmethod
    def _timed(events: list[bytes], event: Text) -> list[bytes]:
        """With the timings, where they are wanted per token, in the last one."""
        if event.timings is None or not events:
            return events
        timings = wire.members({"timings": wire.timings(event.timings)})
        return [*events[:-1], events[-1].removesuffix(b"}\n\n") + timings + b"}\n\n"]

    def _event(self, kind: str, body: Json) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number(), **body})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _number(self) -> int:
        self._n_events += 1
        return self._n_events - 1


EARLY_PING = wire.typed_event({"type": "keepalive"})
"""What shows life while there is no response yet, since its model is being loaded."""


def failed_early(status: int, error: Mapping[str, Any]) -> bytes:
    """The end of a stream that has failed before there was a response."""
    code, message = _code(status, error), error.get("message", "")
    told = {"type": "error", "sequence_number": 0, "code": code, "message": message, "param": error.get("param")}
    response = {"object": "response", "status": "failed", "output": [], "error": {"code": code, "message": message}}
    failed = {"type": "response.failed", "sequence_number": 1, "response": response}
    return wire.typed_event(told) + wire.typed_event(failed)


_EMPTY: dict[ItemType, Json] = {
    "message": {},
    "reasoning": {},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}


def _code(status: int, error: Mapping[str, Any]) -> str:
    if error.get("type") == "exceed_context_size_error":
        return CONTEXT_EXCEEDED
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
