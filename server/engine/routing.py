"""Where a request is expected to cost least, and from when on other instances may take it (`ModelQueue`). Used on the
event loop.

Cost is counted in prompt tokens, by pure functions. What it waits for: its own tokens without those that are in the
instance's cells or come there with others, those of others that are before it, what the streams that run take from it,
and, where every slot is taken, the time until one is free. What it costs others: its own tokens once more. So of two
instances that would be as quick, the one is chosen that has less to compute: twins meet where the first of them went.
What has left the cells counts nowhere: the instances of a model share what RAM and disk keep.
"""

import math
from collections.abc import Collection, Iterable, Sequence

from server.engine.lora import Tuning, reusable
from server.engine.prefix.hashes import BLOCK, PrefixHashes, common_prefix
from server.engine.schedule.prefill import UNSEEN_RATE
from server.engine.sequence import Phase, Slot, Ticket
from server.engine.stats import EngineStats
from server.engine.step.loop import Instance

MOST_LOOKED_AT = 64  # of the requests of an instance
MOST_COMPARED = 4096  # tokens of a prompt, with those of each slot
STREAM_TOKENS = 64
"""What a running stream is taken to cost who joins it: some tens of steps that are longer by about a token's time."""
SETTLED_S = 0.05
"""For an instance with an idle slot to take what costs least there, before others do."""


def coming(ticket: Ticket, others: Sequence[Ticket]) -> int:
    """How many of its first tokens, in whole blocks, an instance is to compute or has computed for one of the `others`
    that wait or run there. Only those that came last are looked at: twins come together."""
    ticket.hashes.upto(len(ticket.request.prompt) // BLOCK, ticket.request.prompt, ticket.tuning)
    shared = (
        reusable(ticket.hashes.shared(other.hashes), other.tuning, ticket.tuning) for other in others[-MOST_LOOKED_AT:]
    )
    return max(shared, default=0)


def cached(prompt: list[int], wanted: Tuning, slots: Iterable[Slot], hashes: PrefixHashes) -> int:
    """About how many of the first tokens are in the cells of some slot. What is hashed is not compared, and of what
    follows no more than `MOST_COMPARED` tokens: long prompts must not hold the event loop up."""
    best = 0
    hashes.upto(len(prompt) // BLOCK, prompt, wanted)
    for slot in slots:
        running = slot.sequence
        n = min(hashes.shared(slot.hashes if running is None else running.hashes), len(slot.tokens))
        if prompt[n : n + 1] == slot.tokens[n : n + 1]:
            n += common_prefix(prompt[n : n + MOST_COMPARED], slot.tokens[n : n + MOST_COMPARED])
        if n > best:
            best = max(best, slot.reusable(n, wanted))
    return best


def outlook(ticket: Ticket, known: int, slots: list[Slot], others: Iterable[Ticket], held: float) -> tuple[int, float]:
    """What `ticket` would find in an instance that has or will have `known` tokens of its prompt, and where `others`
    wait or run: tokens to compute, and tokens until its first one comes.

    A slot is held for as long as `held` prompt tokens take. The step thread may change the slots meanwhile: then it is
    the outlook of a moment ago.
    """
    request = ticket.request
    n_own = len(request.prompt)
    if request.cache_prompt:
        n_own = max(n_own - max(known, cached(request.prompt, ticket.tuning, slots, ticket.hashes)), 1)
    running = [s for slot in slots if (s := slot.sequence) is not None]
    placed = {id(s.ticket) for s in running}
    n_load, n_before = 0, sum(max(len(s.target) - s.n_computed, 0) for s in running if s.phase is Phase.PREFILL)
    for other in others:
        n_load += other.request.n
        n_before += 0 if id(other) in placed else other.n_to_compute
    n_waits = max(n_load + request.n - len(slots), 0) / len(slots)
    return n_own, n_own + n_before + n_load * STREAM_TOKENS + n_waits * held


def held_tokens(stats: Collection[EngineStats]) -> float:
    """Prompt tokens that could be computed while a request has its slot, at the mean of all instances."""
    n_ended = sum(sum(one.request_duration.counts) for one in stats)
    held_s = sum(one.request_duration.sum - one.queue_time.sum for one in stats) / n_ended if n_ended else 1.0
    return max(held_s, 0.0) * prompt_rate(stats)


def prompt_rate(stats: Collection[EngineStats]) -> float:
    """Prompt tokens per second, the mean of all instances: one alone may have seen a few short prompts only."""
    seconds = sum(one.prompt_seconds for one in stats)
    return sum(one.prompt_tokens for one in stats) / seconds if seconds else UNSEEN_RATE


def route(ticket: Ticket, open_: Iterable[Ticket], instances: Sequence[Instance], n_slots: int) -> None:
    """Say which of several `instances` of so many slots each may take `ticket`, and when: where it costs least, beside
    those that are `open_`, and from when on others."""
    request = ticket.request
    there: list[list[Ticket]] = [[] for _ in instances]
    for other in open_:
        there[other.instance].append(other)
    stats = [one.stats for one in instances]
    held, rate = held_tokens(stats), prompt_rate(stats)
    found = [
        outlook(ticket, coming(ticket, others), one.scheduler.slots, others, held)
        for one, others in zip(instances, there, strict=True)
    ]
    n_own = tuple(n for n, _ in found)
    takers = [i for i, one in enumerate(instances) if not one.failure]
    if request.id_slot >= 0:
        takers = [request.id_slot // n_slots]
    best = min(takers, key=lambda i: (sum(found[i]), i))  # what it costs itself and others
    has_slot = sum(other.request.n for other in there[best]) < n_slots
    at = [math.inf] * len(instances)
    for i in takers:
        patience_s = max(n_own[i] - n_own[best], 0) / rate
        at[i] = ticket.waits_since + (max(patience_s, SETTLED_S) if has_slot and i != best else patience_s)
    anyway_at = max(at[i] for i in takers) + n_own[best] / rate
    ticket.instance, ticket.ready_at, ticket.anyway_at, ticket.n_own = best, tuple(at), anyway_at, n_own
