"""Figures of what clients saw. Times in milliseconds, rates per second."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from server.bench.reply import ClientRecord

Figures = dict[str, float]
HIGHER_IS_BETTER = frozenset({"tok/s", "prompt tok/s", "requests/s", "texts/s"})


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all lie at or below (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else 0.0


def first_s(record: ClientRecord) -> float:
    """Return the seconds from sending to the first token, or to the end of a reply without text."""
    return (record.events[0] if record.events else record.done) - record.sent


def gaps_s(record: ClientRecord) -> list[float]:
    """Between two tokens."""
    return [later - earlier for earlier, later in itertools.pairwise(record.events)]


def token_s(record: ClientRecord) -> float:
    """Return the mean seconds per token after the first. Tokens of one chunk have gaps of 0."""
    between = record.events[-1] - record.events[0] if record.events else 0.0
    return between / max(len(record.events) - 1, 1)


def span_s(records: Sequence[ClientRecord]) -> float:
    """Return the seconds from the first request to the last reply."""
    return max(record.done for record in records) - min(record.sent for record in records)


def of_streams(records: Sequence[ClientRecord]) -> Figures:
    """Everything generated over the whole time, prompts included."""
    gaps = [gap for record in records for gap in gaps_s(record)]
    return {
        "tok/s": sum(record.n_predicted for record in records) / span_s(records),
        **of_first_tokens(records),
        "TPOT p50 ms": 1e3 * percentile([token_s(record) for record in records], 0.5),
        "ITL p50 ms": 1e3 * percentile(gaps, 0.5),
        "ITL p99 ms": 1e3 * percentile(gaps, 0.99),
    }


def of_first_tokens(records: Sequence[ClientRecord]) -> Figures:
    """How long clients waited for the first token."""
    firsts = [first_s(record) for record in records]
    return {"TTFT p50 ms": 1e3 * percentile(firsts, 0.5), "TTFT max ms": 1e3 * max(firsts)}


def decode_rate(record: ClientRecord) -> float:
    """Tokens per second from the first to the last: the prompt is no part of it, unless all came in one piece."""
    between = record.events[-1] - record.events[0] if record.events else 0.0
    return (record.n_predicted - 1) / between if between > 0 else record.n_predicted / (record.done - record.sent)


def after(record: ClientRecord, moment: float) -> ClientRecord:
    """What of it came later than `moment`; a token to each event."""
    events = [time for time in record.events if time >= moment]
    return replace(record, events=events, n_predicted=len(events))


def of_requests(records: Sequence[ClientRecord]) -> Figures:
    """Short requests."""
    durations = [record.done - record.sent for record in records]
    return {
        "requests/s": len(records) / span_s(records),
        "p50 ms": 1e3 * percentile(durations, 0.5),
        "p99 ms": 1e3 * percentile(durations, 0.99),
    }


def of_prompts(records: Sequence[ClientRecord]) -> Figures:
    """Prompt tokens, and those that were really computed; nothing where the server does not tell."""
    totals = [record.n_prompt for record in records if record.n_prompt is not None]
    computed = [record.n_computed for record in records if record.n_computed is not None]
    figures: Figures = {"prompt tokens": sum(totals)} if len(totals) == len(records) else {}
    return figures | ({"prompt tokens computed": sum(computed)} if len(computed) == len(records) else {})


def n_new(talk: Sequence[ClientRecord]) -> int:
    """Prompt tokens of a conversation that no turn before had: what a cache of everything would compute.

    A turn's last token is not in any cache, as nothing was decoded after it.
    """
    known, total = 0, 0
    for record in talk:
        total += max(1, (record.n_prompt or 0) - known)
        known = (record.n_prompt or 0) + record.n_predicted - 1
    return total


def longest_gap_s(running: Sequence[ClientRecord], start: float, end: float) -> float:
    """The longest time without a token of one of the streams, between two moments."""
    longest = 0.0
    for record in running:
        during = [time for time in record.events if start <= time <= end]
        longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise([start, *during, end])))
    return longest
