"""Whose cells go when others need them: an idle slot's of least value. Pure."""

from collections.abc import Callable, Iterable

from server.engine.kv.checkpoints import MIN_GAP
from server.engine.kv.cost import value
from server.engine.sequence import Slot


def least_valuable(
    idle: Iterable[Slot], spare: Slot | None = None, price: Callable[[Slot], tuple[float, int]] = lambda slot: (0.0, 0)
) -> Slot:
    """An empty slot, else the one of least value; `spare` only if there is no other.

    `price` is what using a slot costs beside its content, in the unit of `value`, and its rank among equals.
    """
    slots = list(idle)
    now = max(slot.last_used for slot in slots)

    def key(slot: Slot) -> tuple[bool, float, int, float, int]:
        extra, rank = price(slot)
        return slot is spare, value_of(slot, now) + extra, rank, slot.last_used, slot.id

    return min(slots, key=key)


def value_of(slot: Slot, now: float) -> float:
    """By length, recency and reuse; nothing when another slot or the tier holds all of it."""
    if not slot.tokens or slot.kept or (slot.covered_by is not None and _covers(slot.covered_by, slot)):
        return 0.0
    return value(len(slot.tokens), slot.n_used, now - slot.last_used)


def look_for_cover(slot: Slot, slots: Iterable[Slot]) -> None:
    """After `slot` got its content: who holds all of it, too, and whose content it holds.

    Noted when slots are left, not asked for in each choice: that would compare every slot with every other.
    """
    slot.covered_by = None
    tokens = slot.tokens
    n, last = len(tokens), tokens[-1:]
    for other in slots:
        theirs = other.tokens
        if len(theirs) >= n:
            if theirs[n - 1 : n] == last and other is not slot and _covers(other, slot):
                slot.covered_by = other
        elif theirs and theirs[-1] == tokens[len(theirs) - 1] and _covers(slot, other):
            other.covered_by = slot


def _covers(outer: Slot, inner: Slot) -> bool:
    n = len(inner.tokens)
    return (
        0 < n <= len(outer.tokens)
        and outer.tokens[n - 1] == inner.tokens[-1]
        and outer.reusable(n, inner.tuning) > n - MIN_GAP
        and outer.tokens[:n] == inner.tokens
    )
