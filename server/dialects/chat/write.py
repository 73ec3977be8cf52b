"""Writes a chat reply, whole or as a stream of ``chat.completion.chunk`` events.

Keys match llama-server's (server-task.cpp, to_json_oaicompat_chat and its _stream). Two differences are intended. The
first delta of a choice is ``{"role": "assistant", "content": ""}``, with null content if the model may call a tool; in
OpenAI's API it is null if the model calls one. A stream of several choices has one usage chunk for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from server.chat.assembler import Assembler, Delta, Item, Kind, NewParser
from server.dialects import common as wire
from server.dialects.common import Header, Json
from server.dialects.custom_tools import input_parser
from server.dialects.dialect import Writer
from server.dialects.usage import Usage
from server.engine.request import Event, Failed, Finished, Progress, Started, Text, TokenLogprob

if TYPE_CHECKING:
    from server.dialects.chat.parse import ChatRequest

_TEXT = b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":{"content":%b}}],%b\n\n'
"""The chunk of most tokens. Formatting it takes 0.3 us, serializing an object 2 us."""


@dataclass(slots=True)
class _Choice:
    index: int
    message: Assembler
    has_started: bool = False


class ChatWriter(Writer):
    """Writes a chat reply. `prefill`: content at the end of the prompt, which each choice repeats."""

    def __init__(self, request: "ChatRequest", header: Header, parser: NewParser, prefill: str = "") -> None:
        self._header, self._prefill, self._custom = header, prefill, request.custom
        self._role: Json = {"role": "assistant", "content": None if request.conversation.tools.callable else ""}
        self._after_sampling = bool(request.options.post_sampling_probs)
        self._include_usage = request.options.include_usage
        new_parser = input_parser(parser, request.custom)
        self._choices = [_Choice(index, Assembler(new_parser())) for index in range(request.options.n_choices)]
        for choice in self._choices:
            choice.message.begin(prefill)
        self._common: Json = {
            "created": header.created,
            "id": header.id,
            "model": header.model,
            "system_fingerprint": wire.FINGERPRINT,
            "object": "chat.completion.chunk",
        }
        self._tail = orjson.dumps(self._common)[1:]

    def body(self) -> Json:
        return {
            "choices": list(map(self._whole_choice, self._choices)),
            "created": self._header.created,
            "model": self._header.model,
            "system_fingerprint": wire.FINGERPRINT,
            "object": "chat.completion",
            "usage": self._usage().openai(),
            "id": self._header.id,
            "timings": self._timings(),
        }

    def _whole_choice(self, choice: _Choice) -> Json:
        content = choice.message
        message: Json = {"role": "assistant", "content": content.text(Kind.TEXT)}
        if reasoning := content.text(Kind.REASONING):
            message["reasoning_content"] = reasoning
        if content.calls:
            message["tool_calls"] = [self._call(item, item.text) for item in content.calls]
        reason, logprobs = _reason(content), self._logprobs(content.logprobs)
        return {"finish_reason": reason, "index": choice.index, "message": message, **logprobs}

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        assert not isinstance(event, Failed), "the session raises its error"
        choice = self._choices[event.index]
        if type(event) is Text:  # most events
            deltas = choice.message.feed(event)
            if not self.streams:
                return []
            if len(deltas) == 1 and deltas[0].item.kind is Kind.TEXT and not (event.timings or deltas[0].logprobs):
                return [_TEXT % (event.index, orjson.dumps(deltas[0].text), self._tail)]
            return self._deltas(choice, deltas, wire.timed(event.timings))
        match event:
            case Finished():
                return self._finished(choice, event)
            case Started():
                prefill = [self._chunk(choice, {"content": self._prefill}, {})] if self._prefill else []
                return self._begin(choice, {}) + prefill
            case Progress():
                return self._begin(choice, wire.progress(event)) or [self._chunk(choice, _EMPTY, wire.progress(event))]
        return []

    def finish(self) -> list[bytes]:
        if not self._include_usage:
            return [wire.DONE]
        return [self._event([], {"usage": self._usage().openai(), "timings": self._timings()}), wire.DONE]

    def _timings(self) -> Json:
        return wire.timings(self._choices[0].message.finished.timings)

    def _usage(self) -> Usage:
        choices = [choice.message for choice in self._choices]
        return Usage.of(((0, each.finished) for each in choices), sum(each.n_reasoning_tokens for each in choices))

    def _begin(self, choice: _Choice, extra: Json) -> list[bytes]:
        if choice.has_started:
            return []
        choice.has_started = True
        return [self._chunk(choice, self._role, extra)]

    def _deltas(self, choice: _Choice, deltas: Sequence[Delta], extra: Json) -> list[bytes]:
        """Return a chunk per delta; the last one has all log probabilities and `extra`."""
        if not deltas:
            return []
        *others, last = deltas
        chunks = [self._chunk(choice, self._delta(each), {}) for each in others]
        logprobs = [each for delta in deltas for each in delta.logprobs]
        return [*chunks, self._chunk(choice, self._delta(last), extra, logprobs)]

    def _finished(self, choice: _Choice, event: Finished) -> list[bytes]:
        deltas = choice.message.finish(event)
        if not self.streams:
            return []
        chunks = self._begin(choice, {}) + self._deltas(choice, deltas, {})
        if rest := choice.message.rest():  # of tokens without text
            chunks.append(self._chunk(choice, _EMPTY, {}, rest))
        extra = {} if self._include_usage else {"timings": wire.timings(event.timings)}
        last = {"finish_reason": _reason(choice.message), "index": choice.index, "delta": {}}
        return [*chunks, self._event([last], extra)]

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json:
        return {"logprobs": wire.logprobs(tokens, after_sampling=self._after_sampling)} if tokens else {}

    def _delta(self, delta: Delta) -> Json:
        item = delta.item
        if item.kind is Kind.TEXT:
            return {"content": delta.text}
        if item.kind is Kind.REASONING:
            return {"reasoning_content": delta.text}
        kind, key = self._kind(item)
        call = self._call(item, delta.text) if delta.begins else {kind: {key: delta.text}}
        return {"tool_calls": [{"index": item.index, **call}]}

    def _call(self, item: Item, text: str) -> Json:
        kind, key = self._kind(item)
        return {"type": kind, kind: {"name": item.name, key: text}, "id": item.id}

    def _kind(self, item: Item) -> tuple[str, str]:
        """Return the type of a call, and the member that contains its text."""
        return ("custom", "input") if item.name in self._custom else ("function", "arguments")

    def _chunk(self, choice: _Choice, delta: Json, extra: Json, tokens: Sequence[TokenLogprob] = ()) -> bytes:
        written = {"finish_reason": None, "index": choice.index, "delta": delta, **self._logprobs(tokens)}
        return self._event([written], extra)

    def _event(self, choices: Sequence[Json], extra: Json) -> bytes:
        return wire.event({"choices": choices, **self._common, **extra})


_EMPTY: Json = {"content": ""}


def _reason(message: Assembler) -> str:
    return wire.finish_reason(message.finished.reason, called=bool(message.calls))
