"""Replies of ``/api/chat`` and ``/api/generate``: one object, or a line of JSON for each piece of text and each call.

::

    {"model", "created_at", "message": {"role": "assistant", "content"}, "done": false}       /api/chat
    {"model", "created_at", "response", "done": false}                                        /api/generate
    {..., "done": true, "done_reason", "total_duration", ..., "eval_duration"}                the last line; nanoseconds

Beside the text stand ``thinking``, ``tool_calls`` (each whole, its arguments an object) and ``logprobs``, if any.
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

_BREAKS = {ord("\n"): " ", ord("\r"): " "} | {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters at which clients split lines: of arguments between their members, and, for httpx, inside of texts."""


@dataclass(frozen=True, slots=True)
class Reply:
    """How lines look: the name that the client has called the model by, and whether it is a chat's."""

    model: str
    chat: bool

    def line(self, text: str = "", **more: object) -> Json:
        """Return a line with more of a message's keys."""
        head: Json = {"model": self.model, "created_at": rfc3339(time.time())}
        if self.chat:
            return {**head, "message": {"role": "assistant", "content": text, **more}, "done": False}
        return {**head, "response": text, **more, "done": False}

    def nothing(self, reason: str) -> Json:
        """Return the whole reply where nothing was to be generated."""
        return {**self.line(), "done": True, "done_reason": reason}


class OllamaWriter(Writer):
    """Writes a reply as lines, or as one object.

    A call is written when the next item starts, because clients expect whole calls. `began`, `loaded`: when the request
    arrived and its model was loaded, in seconds of `time.perf_counter`. `prompt`: its tokens if the last line has the
    ``context``.
    """

    def __init__(
        self, reply: Reply, parser: NewParser, *, began: float, loaded: float, prompt: list[int] | None = None
    ) -> None:
        self._reply, self._began, self._loaded, self._prompt = reply, began, loaded, prompt
        self._said = Assembler(parser())
        self._open: Item | None = None  # the call that is being written
        self._generated: list[int] = []

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        lines: list[Json] = []
        if isinstance(event, Text):
            self._generated += event.tokens
            deltas = self._said.feed(event)
            if self.streams:
                lines = self._written(deltas, self._said.rest() if event.logprobs else ())
        elif isinstance(event, Finished):
            deltas = self._said.finish(event)
            if self.streams:
                lines = [*self._written(deltas), *self._called(), self._reply.line() | self._last(event)]
        return [orjson.dumps(line).decode().translate(_BREAKS).encode() + b"\n" for line in lines]

    def body(self) -> Json:
        said, more = self._said, dict[str, object]()
        if reasoning := said.said(Kind.REASONING):
            more["thinking"] = reasoning
        if said.calls:
            more["tool_calls"] = list(map(_call, said.calls))
        whole = self._reply.line(said.said(Kind.TEXT), **more) | self._last(said.finished)
        return whole | _logprobs(said.logprobs) if said.logprobs else whole

    def _last(self, end: Finished) -> Json:
        """Return the members of the last line."""
        found: Json = {
            "done": True,
            "done_reason": "length" if end.reason is FinishReason.LIMIT else "stop",
            "total_duration": int(1e9 * (time.perf_counter() - self._began)),
            "load_duration": int(1e9 * (self._loaded - self._began)),
            "prompt_eval_count": end.n_prompt,
            "prompt_eval_duration": int(1e6 * end.timings.prompt_ms),
            "eval_count": end.n_predicted,
            "eval_duration": int(1e6 * end.timings.predicted_ms),
        }
        return found if self._prompt is None else {**found, "context": self._prompt + self._generated}

    def _written(self, deltas: list[Delta], held_back: Sequence[TokenLogprob] = ()) -> list[Json]:
        """`held_back`: log probabilities of buffered text; they get their own line."""
        lines: list[Json] = []
        for delta in deltas:
            if delta.item is not self._open:
                lines += self._called()
            found: Json | None = None
            if delta.item.kind is Kind.CALL:
                self._open = delta.item
            elif delta.item.kind is Kind.TEXT:
                found = self._reply.line(delta.text)
            else:
                found = self._reply.line(thinking=delta.text)
            if delta.logprobs:
                found = (found or self._reply.line()) | _logprobs(delta.logprobs)
            lines += [found] if found else []
        return [*lines, self._reply.line() | _logprobs(held_back)] if held_back else lines

    def _called(self) -> list[Json]:
        """Return the call that is complete."""
        call, self._open = self._open, None
        return [] if call is None else [self._reply.line(tool_calls=[_call(call)])]


def _call(item: Item) -> Json:
    arguments = orjson.Fragment(object_text(item.text, whole=True))
    return {"id": item.id, "function": {"index": item.index, "name": item.name, "arguments": arguments}}


def _logprobs(tokens: Sequence[TokenLogprob]) -> Json:
    """Return the log probabilities without ids of tokens, which Ollama does not have."""
    entries = probabilities(tokens)
    for entry in entries:
        for each in (entry, *entry["top_logprobs"]):
            del each["id"]
    return {"logprobs": entries}
