"""From bytes and their times to what a client saw. Everything here runs after the last byte has arrived.

Usage comes from ``usage`` (OpenAI) and ``timings`` (llama-server) where a server offers them; where it does not, tokens
are counted as events and the computed part of a prompt is unknown.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from server.bench.connection import Arrival, WholeReply, is_chunked, split_head, status_of
from server.bench.errors import BadReply, BenchError, Refused, UnknownModel

_SHOWN = 600  # characters of a reply in an error


@dataclass(slots=True)
class ClientRecord:
    """One request as its client saw it; times are seconds on one clock. ``events`` are those that carried text.

    ``n_prompt`` and ``n_computed`` (what of the prompt was not in a cache) are None where the server does not tell.
    """

    sent: float = 0.0
    events: list[float] = field(default_factory=list)
    done: float = 0.0
    text: str = ""
    n_predicted: int = 0
    n_prompt: int | None = None
    n_computed: int | None = None


def read_stream(sent: float, arrivals: Sequence[Arrival], *, cut: bool = False) -> ClientRecord:
    """A streamed reply; `cut` when the client hung up on purpose. Raises `BenchError`."""
    raw = b"".join(arrival.data for arrival in arrivals)
    head, start = split_head(raw)
    pieces = list(_chunks(raw, start)) if is_chunked(head) else [(start, raw[start:])]
    if status_of(head) != 200:
        raise refusal(status_of(head), b"".join(data for _, data in pieces))
    record = ClientRecord(sent=sent, done=arrivals[-1].at)
    ended = _read_events(pieces, _Clock(arrivals), record)
    if not ended and not cut:
        raise BadReply(f"a stream ended without [DONE]: ...{raw[-_SHOWN:].decode(errors='replace')}")
    record.n_predicted = record.n_predicted or len(record.events)
    return record


def read_answer(answer: WholeReply) -> ClientRecord:
    """A reply that was not streamed. Raises `BenchError`."""
    record = ClientRecord(sent=answer.sent, events=[answer.done], done=answer.done)
    _take(read_json(answer), record)
    return record


def read_json(answer: WholeReply) -> dict[str, Any]:
    """The object that a reply is. Raises `BenchError`."""
    if answer.status != 200:
        raise refusal(answer.status, answer.body)
    return _object(answer.body)


def refusal(status: int, body: bytes) -> BenchError:
    """What an error reply means, in the server's words."""
    said = _said(body)
    if status in (401, 403):
        return Refused(f"the server refuses the API key ({status}): {said}")
    if status == 404:
        return UnknownModel(f"the server does not have that (404): {said}")
    return BadReply(f"the server answered {status}: {said}")


class _Clock:
    """When the byte at a position had arrived."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._ends = list(accumulate(len(arrival.data) for arrival in arrivals))
        self._times = [arrival.at for arrival in arrivals]

    def at(self, end: int) -> float:
        """`end` is the number of bytes up to and with it."""
        return self._times[min(bisect_left(self._ends, end), len(self._times) - 1)]


def _chunks(raw: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the data of each HTTP chunk. The last one may be truncated."""
    while (line_end := raw.find(b"\r\n", at)) >= 0:
        try:
            n_bytes = int(raw[at:line_end].split(b";")[0], 16)
        except ValueError as error:
            raise BadReply(f"not a chunked reply at byte {at}: {raw[at : at + 50]!r}") from error
        if n_bytes == 0:
            return
        at = line_end + 2
        yield at, raw[at : at + n_bytes]
        at += n_bytes + 2


def _read_events(pieces: Sequence[tuple[int, bytes]], clock: _Clock, record: ClientRecord) -> bool:
    """Fill `record` from the ``data:`` lines; whether the closing one was among them."""
    line = b""
    for start, data in pieces:
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            line += data[at:end]
            at = end + 1
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    return True
                if _take(_object(payload), record):
                    record.events.append(clock.at(start + at))
            line = b""
        line += data[at:]
    return False


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise BadReply(f"not JSON: {payload[:_SHOWN].decode(errors='replace')!r}") from error
    if not isinstance(value, dict) or value.get("error"):
        raise BadReply(f"the server answered: {_said(payload)}")
    return value


def _take(value: dict[str, Any], record: ClientRecord) -> bool:
    """Read one event or a whole reply; whether it carried text."""
    text = ""
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        text = _text_of(choices[0])
    record.text += text
    usage, timings = value.get("usage"), value.get("timings")
    if isinstance(usage, dict):
        _take_usage(usage, record)
    if isinstance(timings, dict) and isinstance(timings.get("prompt_n"), int):
        record.n_computed = timings["prompt_n"]
        record.n_prompt = timings["prompt_n"] + int(timings.get("cache_n") or 0)
        record.n_predicted = int(timings.get("predicted_n") or record.n_predicted)
    return bool(text)


def _take_usage(usage: dict[str, Any], record: ClientRecord) -> None:
    """Read the token counts. Without the detail, cached tokens are unknown, not 0: the server may have a cache."""
    record.n_predicted = int(usage.get("completion_tokens") or record.n_predicted)
    if not isinstance(usage.get("prompt_tokens"), int):
        return
    record.n_prompt = usage["prompt_tokens"]
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        record.n_computed = record.n_prompt - details["cached_tokens"]


def _text_of(choice: dict[str, Any]) -> str:
    """Return a choice's text: a completion's text, or the content and reasoning of a message or delta."""
    said = choice.get("delta") or choice.get("message") or {}
    parts = (choice.get("text"), *(said.get(name) for name in ("reasoning_content", "reasoning", "content")))
    return "".join(part for part in parts if isinstance(part, str))


def _said(body: bytes) -> str:
    """The message of an error body: OpenAI's, Ollama's, FastAPI's, or the body itself."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:_SHOWN] or "no reason given"
    if isinstance(value, dict):
        error = value.get("error") or value.get("detail") or value.get("message") or value
        value = error.get("message", error) if isinstance(error, dict) else error
    return str(value)[:_SHOWN]
