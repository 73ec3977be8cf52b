"""Writes replies of ``/api/chat`` and ``/api/generate``: one object, or a line of JSON for each text and each call.

::

    {"model", "created_at", "message": {"role": "assistant", "content"}, "done": false}       /api/chat
    {"model", "created_at", "response", "done": false}                                        /api/generate
    {..., "done": true, "done_reason", "total_duration", ..., "eval_duration"}                the last line; nanoseconds

A message may also have ``thinking``, ``tool_calls`` (complete calls, with an object as arguments) and ``logprobs``.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from server.chat.assembler import Assembler, Delta, Item, Kind, NewParser
from server.dialects.common import Json, probabilities, rfc3339
from server.dialects.dialect import Writer
from server.engine.request import Event, Finished, FinishReason, Text, TokenLogprob
from server.formats.arguments import object_text

_LINE_BREAKS = {ord("\n"): " ", ord("\r"): " "} | {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Escapes characters at which clients split lines: newlines in arguments, and others that httpx splits at."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Creates lines. ``model``: the client's name of the model; ``chat``: the endpoint is ``/api/chat``."""

    model: str
    chat: bool

    def line(self, text: str = "", **more: object) -> Json:
        """Return a line with `text` and further members of the message."""
        head: Json = {"model": self.model, "created_at": rfc3339(time.time())}
        if self.chat:
            return {**head, "message": {"role": "assistant", "content": text, **more}, "done": False}
        return {**head, "response": text, **more, "done": False}

    def empty(self, reason: str) -> Json:
        """Return the whole reply to a request without generation."""
        return {**self.line(), "done": True, "done_reason": reason}


class OllamaWriter(Writer):
    """Writes a reply as lines, or as one object.

    A call is written when the next item starts, because clients execute every call that they receive. So a truncated
    call is dropped. `started_at`, `loaded_at`: when the request arrived and when its model was loaded, in seconds of
    `time.perf_counter`. `prompt`: the prompt's tokens if the last line has a ``context``.
    """

    def __init__(
        self, reply: Reply, parser: NewParser, *, started_at: float, loaded_at: float, prompt: list[int] | None = None
    ) -> None:
        self._reply, self._started_at, self._loaded_at, self._prompt = reply, started_at, loaded_at, prompt
        self._assembler = Assembler(parser())
        self._open: Item | None = None  # the incomplete call
        self._generated: list[int] = []

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        lines: list[Json] = []
        if isinstance(event, Text):
            self._generated += event.tokens
            deltas = self._assembler.feed(event)
            if self.streams:
                lines = self._written(deltas, self._assembler.rest() if event.logprobs else ())
        elif isinstance(event, Finished):
            deltas = self._assembler.finish(event)
            if self.streams:
                lines = [*self._written(deltas), *self._called(), self._reply.line() | self._last(event)]
        return [orjson.dumps(line).decode().translate(_LINE_BREAKS).encode() + b"\n" for line in lines]

    def body(self) -> Json:
        assembler, more = self._assembler, dict[str, object]()
        if reasoning := assembler.text(Kind.REASONING):
            more["thinking"] = reasoning
        if calls := [call for call in assembler.calls if not self._is_truncated(call)]:
            more["tool_calls"] = list(map(_call, calls))
        whole = self._reply.line(assembler.text(Kind.TEXT), **more) | self._last(assembler.finished)
        return whole | _logprobs(assembler.logprobs) if assembler.logprobs else whole

    def _last(self, end: Finished) -> Json:
        """Return the members of the last line."""
        last: Json = {
            "done": True,
            "done_reason": "length" if end.reason is FinishReason.LIMIT else "stop",
            "total_duration": int(1e9 * (time.perf_counter() - self._started_at)),
            "load_duration": int(1e9 * (self._loaded_at - self._started_at)),
            "prompt_eval_count": end.n_prompt,
            "prompt_eval_duration": int(1e6 * end.timings.prompt_ms),
            "eval_count": end.n_predicted,
            "eval_duration": int(1e6 * end.timings.predicted_ms),
        }
        return last if self._prompt is None else {**last, "context": self._prompt + self._generated}

    def _written(self, deltas: list[Delta], buffered: Sequence[TokenLogprob] = ()) -> list[Json]:
        """Return the lines for `deltas`. `buffered`: log probabilities of buffered text, which get their own line."""
        lines: list[Json] = []
        for delta in deltas:
            if delta.item is not self._open:
                lines += self._called()
            line: Json | None = None
            if delta.item.kind is Kind.CALL:
                self._open = delta.item
            elif delta.item.kind is Kind.TEXT:
                line = self._reply.line(delta.text)
            else:
                line = self._reply.line(thinking=delta.text)
            if delta.logprobs:
                line = (line or self._reply.line()) | _logprobs(delta.logprobs)
            lines += [line] if line else []
        return [*lines, self._reply.line() | _logprobs(buffered)] if buffered else lines

    def _called(self) -> list[Json]:
        """Return the line of the current call, to which no text is added any more."""
        call, self._open = self._open, None
        return [] if call is None or self._is_truncated(call) else [self._reply.line(tool_calls=[_call(call)])]

    def _is_truncated(self, call: Item) -> bool:
        """Return whether a limit or a stop string ended the reply within the arguments of `call`."""
        end = self._assembler.end
        if end is None or end.reason is FinishReason.EOS or call is not self._assembler.items[-1]:
            return False
        try:
            return not isinstance(orjson.loads(call.text), dict)
        except ValueError:
            return True


def _call(item: Item) -> Json:
    arguments = orjson.Fragment(object_text(item.text, whole=True))
    return {"id": item.id, "function": {"index": item.index, "name": item.name, "arguments": arguments}}


def _logprobs(tokens: Sequence[TokenLogprob]) -> Json:
    """Return the log probabilities without token ids, which Ollama's API does not have."""
    entries = probabilities(tokens)
    for entry in entries:
        for each in (entry, *entry["top_logprobs"]):
            del each["id"]
    return {"logprobs": entries}
