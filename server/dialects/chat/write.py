"""A chat response as one object or as a stream of ``chat.completion.chunk`` events.

Keys match llama-server's (server-task.cpp, to_json_oaicompat_chat and its _stream). Two intended differences: the
first delta is ``{"role": "assistant", "content": ""}``, once per choice; and a stream of several choices has one
usage chunk for all of them. A chunk is concatenated from constant bytes and the encoded text, which takes 0.3 us
instead of 2 us for a dict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from server.chat.assembler import Assembler, Delta, Item, Kind, NewParser
from server.dialects import common as wire
from server.dialects.common import Header, Json
from server.dialects.custom_tools import CustomInput, custom_input
from server.engine.request import Event, Finished, Progress, Started, Text, TokenLogprob

_FIRST = b'"role":"assistant","content":""'
_EMPTY = b'"content":""'


@dataclass(frozen=True, slots=True)
class ChatReplyOptions:
    """The response's format. ``old``: calls are `functions` of 2023. ``after_sampling``: probabilities are those after
    the samplers. ``custom``: tools whose calls have one text (`custom_tools`).
    """

    old: bool = False
    after_sampling: bool = False
    custom: frozenset[str] = frozenset()


MODERN = ChatReplyOptions()


class ChatReply:
    """Collects events into one ``chat.completion``; `prefill` is the content that the prompt has begun."""

    def __init__(
        self, header: Header, parser: NewParser, *, prefill: str = "", words: ChatReplyOptions = MODERN
    ) -> None:
        self._header = header
        self._words = words
        self._prefill = prefill
        self._parser = parser
        self._choices: dict[int, Assembler] = {}

    def feed(self, _prompt: int, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Text):
            self._choice(event.index).feed(event)
        elif isinstance(event, Finished):
            self._choice(event.index).finish(event)

    def body(self) -> Json:
        """The reply, once every choice has finished."""
        choices = [self._shown(index, choice) for index, choice in sorted(self._choices.items())]
        every = list(self._choices.values())
        return {
            "choices": choices,
            "created": self._header.created,
            "model": self._header.model,
            "system_fingerprint": wire.FINGERPRINT,
            "object": "chat.completion",
            "usage": usage(every),
            "id": self._header.id,
            "timings": wire.timings(min(self._choices.items())[1].finished.timings),
        }

    def _shown(self, index: int, choice: Assembler) -> Json:
        reason = wire.finish_reason(choice.finished.reason, called=choice.called, old=self._words.old)
        entry: Json = {"finish_reason": reason, "index": index, "message": self._message(choice)}
        logprobs = [*(each for item in choice.items for each in item.logprobs), *choice.rest()]
        if logprobs:
            entry["logprobs"] = wire.logprobs(logprobs, after_sampling=self._words.after_sampling)
        return entry

    def _message(self, choice: Assembler) -> Json:
        message: Json = {"role": "assistant", "content": choice.said(Kind.TEXT)}
        if thoughts := choice.said(Kind.REASONING):
            message["reasoning_content"] = thoughts
        calls = [self._call(item) for item in choice.calls]
        if calls and self._words.old:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _call(self, item: Item) -> Json:
        return _custom(item, custom_input(item.text)) if item.name in self._words.custom else _call(item, item.text)

    def _choice(self, index: int) -> Assembler:
        if index not in self._choices:
            self._choices[index] = Assembler(self._parser())
            self._choices[index].begin(self._prefill)
        return self._choices[index]


def usage(choices: Sequence[Assembler]) -> Json:
    """Return ``usage`` for all choices of one prompt; reasoning tokens are included if there are any."""
    counts = wire.usage((0, choice.finished) for choice in choices)
    n_thoughts = sum(choice.n_reasoning_tokens for choice in choices)
    return counts | {"completion_tokens_details": {"reasoning_tokens": n_thoughts}} if n_thoughts else counts


@dataclass(slots=True)
class _Choice:
    """``head``: the bytes before a delta. ``inputs``: of calls of custom tools, by call number."""

    message: Assembler
    head: bytes
    began: bool = False
    inputs: dict[int, CustomInput] = field(default_factory=dict)


class ChatStream:
    """Pass every event to `feed` and send the result, then send the result of `finish`. `echo` is each choice's first
    content.
    """

    def __init__(
        self,
        header: Header,
        parser: NewParser,
        *,
        include_usage: bool,
        echo: str = "",
        words: ChatReplyOptions = MODERN,
    ) -> None:
        self._words = words
        self._parser = parser
        self._echo = echo
        self._include_usage = include_usage
        self._choices: dict[int, _Choice] = {}
        self._first: Finished | None = None  # the end whose timings are the stream's
        self._common = wire.members(
            {
                "created": header.created,
                "id": header.id,
                "model": header.model,
                "system_fingerprint": wire.FINGERPRINT,
                "object": "chat.completion.chunk",
            }
        )

    def feed(self, _prompt: int, event: Event) -> list[bytes]:
        """The chunks that follow from one event."""
        if type(event) is Text:  # nearly all are
            return self._text(self._choices.get(event.index) or self._choice(event.index), event)
        match event:
            case Finished(index=index):
                return self._finished(self._choice(index), event)
            case Started(index=index):
                choice = self._choice(index)
                echo = [self._chunk(choice, _content(self._echo))] if self._echo else []
                return self._begin(choice) + echo
            case Progress(index=index):
                choice = self._choice(index)
                delta = _EMPTY if choice.began else _FIRST
                choice.began = True
                return [self._chunk(choice, delta, wire.members(wire.progress(event)))]
        return []

    def finish(self) -> list[bytes]:
        """The last events of the stream, after every choice has finished."""
        if not self._include_usage:
            return [wire.DONE]
        assert self._first is not None, "no choice has finished"
        counts = usage([choice.message for choice in self._choices.values()])
        extra: Json = {"usage": counts, "timings": wire.timings(self._first.timings)}
        return [b'data: {"choices":[]' + self._common + wire.members(extra) + b"}\n\n", wire.DONE]

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            head = b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":{' % index
            choice = self._choices[index] = _Choice(Assembler(self._parser()), head)
        return choice

    def _begin(self, choice: _Choice) -> list[bytes]:
        if choice.began:
            return []
        choice.began = True
        return [self._chunk(choice, _FIRST)]

    def _text(self, choice: _Choice, event: Text) -> list[bytes]:
        deltas = choice.message.feed(event)
        if len(deltas) == 1 and deltas[0].item.kind is Kind.TEXT and not (event.timings or deltas[0].logprobs):
            return [self._chunk(choice, _content(deltas[0].text))]  # the shortest way for nearly all tokens
        timings = wire.members({"timings": wire.timings(event.timings)}) if event.timings else b""
        return self._deltas(choice, deltas, timings)

    def _deltas(self, choice: _Choice, deltas: Sequence[Delta], extra: bytes = b"") -> list[bytes]:
        """Return a chunk per delta; the last one has the pending log probabilities and `extra`."""
        logprobs = self._logprobs([each for delta in deltas for each in delta.logprobs])
        told = list(filter(None, (self._delta(choice, delta) for delta in deltas)))
        if logprobs and not told:
            told = [_EMPTY]
        last = len(told) - 1
        return [
            self._chunk(choice, members, extra, logprobs) if number == last else self._chunk(choice, members)
            for number, members in enumerate(told)
        ]

    def _finished(self, choice: _Choice, event: Finished) -> list[bytes]:
        self._first = self._first or event
        chunks = self._begin(choice)
        chunks += self._deltas(choice, choice.message.finish(event))
        for index, given in choice.inputs.items():
            if rest := given.finish(choice.message.calls[index].text):
                call = {"index": index, "custom": {"input": rest}}
                chunks.append(self._chunk(choice, b'"tool_calls":[' + orjson.dumps(call) + b"]"))
        if left := choice.message.rest():
            chunks.append(self._chunk(choice, _EMPTY, b"", self._logprobs(left)))
        reason = wire.finish_reason(event.reason, called=choice.message.called, old=self._words.old).encode()
        extra = b"" if self._include_usage else wire.members({"timings": wire.timings(event.timings)})
        chunks.append(
            b'data: {"choices":[{"finish_reason":"%b","index":%d,"delta":{}}]' % (reason, event.index)
            + self._common
            + extra
            + b"}\n\n"
        )
        return chunks

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> bytes:
        if not tokens:
            return b""
        return b',"logprobs":' + orjson.dumps(wire.logprobs(tokens, after_sampling=self._words.after_sampling))

    def _delta(self, choice: _Choice, delta: Delta) -> bytes:
        """Return the members of a delta; none if there is nothing to send yet."""
        item = delta.item
        if item.kind is Kind.TEXT:
            return _content(delta.text)
        if item.kind is Kind.REASONING:
            return b'"reasoning_content":' + orjson.dumps(delta.text)
        if item.name in self._words.custom:
            return self._custom_delta(choice, delta)
        call = _call(item, "") if delta.begins else {"function": {"arguments": delta.text}}
        if self._words.old:
            return b'"function_call":' + orjson.dumps(call["function"])
        return b'"tool_calls":[' + orjson.dumps({"index": item.index, **call}) + b"]"

    @staticmethod
    def _custom_delta(choice: _Choice, delta: Delta) -> bytes:
        item = delta.item
        text = choice.inputs.setdefault(item.index, CustomInput()).feed(delta.text)
        if not (text or delta.begins):
            return b""
        call = _custom(item, text) if delta.begins else {"custom": {"input": text}}
        return b'"tool_calls":[' + orjson.dumps({"index": item.index, **call}) + b"]"

    def _chunk(self, choice: _Choice, delta: bytes, extra: bytes = b"", logprobs: bytes = b"") -> bytes:
        return choice.head + delta + b"}" + logprobs + b"}]" + self._common + extra + b"}\n\n"


def _call(item: Item, arguments: str) -> Json:
    return {"type": "function", "function": {"name": item.name, "arguments": arguments}, "id": item.id}


def _custom(item: Item, text: str) -> Json:
    return {"type": "custom", "custom": {"name": item.name, "input": text}, "id": item.id}


def _content(text: str) -> bytes:
    return b'"content":' + orjson.dumps(text)
