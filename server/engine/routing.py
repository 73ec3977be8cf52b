"""The instance where a request is expected to cost least, and when other instances may take it (`ModelQueue`). Used on
the event loop.

Costs are counted in prompt tokens by pure functions. A request waits for its own uncached tokens, prefill of
requests before it, the share of running sequences, and, if all slots are busy, the time until one is free. It costs
others its own tokens once more. So of two equally fast instances the one with less to compute is chosen, and
requests with a common prefix meet. A cache key prefers an instance that costs little more (`HINT_TOKENS`). States in
RAM and on disk do not count, because instances share them.
"""

import math
import zlib
from collections.abc import Collection, Iterable, Sequence

from server.engine.loop import Instance
from server.engine.lora import reusable
from server.engine.prefill import UNSEEN_RATE
from server.engine.prefix_cache import common_prefix, longest_match
from server.engine.request import Request
from server.engine.sequence import Phase, Slot, Ticket
from server.engine.stats import EngineStats

MAX_CANDIDATES = 64  # requests of an instance that are checked
STREAM_TOKENS = 64
"""Assumed cost of a running sequence for a new request, in prompt tokens."""
HINT_TOKENS = 2 * STREAM_TOKENS
"""A cache key's instance may have so many prompt tokens more to compute, and so much more load, than the cheapest."""
SETTLED_S = 0.05
"""Seconds for an idle instance to take its cheapest requests before others may."""


def expected_prefix(ticket: Ticket, others: Sequence[Ticket]) -> int:
    """Return how many leading tokens an instance computes for one of `others`, which wait or run there. Checks the
    newest ones only, because requests with a common prefix arrive together.
    """
    prompt, longest = ticket.request.prompt, 0
    for other in others[-MAX_CANDIDATES:]:
        theirs = other.request.prompt
        if theirs[longest : longest + 1] == prompt[longest : longest + 1]:
            n = reusable(common_prefix(prompt, theirs), other.adapter_set, ticket.adapter_set)
            longest = max(longest, n)
    return longest


def estimated_cost(
    ticket: Ticket, known: int, slots: list[Slot], others: Iterable[Ticket], held: float
) -> tuple[int, float]:
    """Return (tokens to compute, tokens until the first output token) for `ticket` in an instance that has or will have
    `known` tokens of its prompt and where `others` wait or run.

    A slot is held for the time of `held` prompt tokens. The step thread may change the slots meanwhile, so this is
    an estimate.
    """
    request = ticket.request
    n_own = len(request.prompt)
    if request.cache_prompt:
        n_own = max(n_own - max(known, longest_match(slots, request.prompt, ticket.adapter_set, 0, n_own)[1]), 1)
    running = [s for slot in slots if (s := slot.sequence) is not None]
    placed = {id(s.ticket) for s in running}
    n_load, n_before = 0, sum(max(len(s.target) - s.n_computed, 0) for s in running if s.phase is Phase.PREFILL)
    for other in others:
        n_load += other.request.n
        n_before += 0 if id(other) in placed else other.n_to_compute
    n_waits = max(n_load + request.n - len(slots), 0) / len(slots)
    return n_own, n_own + n_before + n_load * STREAM_TOKENS + n_waits * held


def held_tokens(stats: Collection[EngineStats]) -> float:
    """Return the prompt tokens that could be computed while a request holds its slot, on average."""
    n_ended = sum(sum(one.request_duration.counts) for one in stats)
    held_s = sum(one.request_duration.sum - one.queue_time.sum for one in stats) / n_ended if n_ended else 1.0
    return max(held_s, 0.0) * prompt_rate(stats)


def prompt_rate(stats: Collection[EngineStats]) -> float:
    """Return prefill tokens per second, averaged over all instances because a single one may have few measurements."""
    seconds = sum(one.prompt_seconds for one in stats)
    return sum(one.prompt_tokens for one in stats) / seconds if seconds else UNSEEN_RATE


def hinted_instance(request: Request, takers: Sequence[int]) -> int | None:
    """Return the instance chosen by the request's cache key, None if it has no key. Nothing is remembered: the
    key's hash chooses.
    """
    if not request.cache_key:
        return None
    return takers[zlib.crc32(f"{request.client}\0{request.cache_key}".encode()) % len(takers)]


def route(ticket: Ticket, open_: Iterable[Ticket], instances: Sequence[Instance], n_slots: int) -> None:
    """Set the cheapest of `instances`, with `n_slots` slots each, for `ticket`, and when the others may take it: after
    as long as recomputing the cached prefix takes.
    """
    request = ticket.request
    there: list[list[Ticket]] = [[] for _ in instances]
    for other in open_:
        there[other.instance].append(other)
    stats = [one.stats for one in instances]
    held = held_tokens(stats)
    found = [
        estimated_cost(ticket, expected_prefix(ticket, others), one.scheduler.slots, others, held)
        for one, others in zip(instances, there, strict=True)
    ]
    takers = [i for i, one in enumerate(instances) if not one.failure]
    if request.id_slot >= 0:
        takers = [request.id_slot // n_slots]
    best = min(takers, key=lambda i: (sum(found[i]), i))  # cost for itself and for others
    hinted = hinted_instance(request, takers)
    if hinted is not None and all(
        of_hinted - of_best <= HINT_TOKENS for of_hinted, of_best in zip(found[hinted], found[best], strict=True)
    ):
        best = hinted
    patience_s = max(max(found[i][0] for i in takers) - found[best][0], 0) / prompt_rate(stats)
    if sum(other.request.n for other in there[best]) < n_slots:
        patience_s = max(patience_s, SETTLED_S)
    ticket.instance, ticket.n_to_compute = best, found[best][0]
    ticket.shared_at = math.inf if request.id_slot >= 0 else ticket.waits_since + patience_s
