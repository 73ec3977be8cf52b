"""Proof that every slot and every cell of an instance is accounted for once; raises AssertionError. Pure."""

from collections.abc import Collection, Sequence

from server.engine.media import below, check_spans
from server.engine.sequence import Phase, Slot
from server.engine.sequence import Sequence as Running


def check_slots(slots: Sequence[Slot], n_ctx: int) -> None:
    """Each slot, of at most `n_ctx` tokens, holds what its sequence says, and no sequence holds two."""
    held = [slot.sequence for slot in slots if slot.sequence is not None]
    assert len(set(map(id, held))) == len(held), "a sequence holds two slots"
    for slot in slots:
        assert len(slot.tokens) <= n_ctx, f"slot {slot.id} holds more than its context"
        assert slot.hashes.fits(slot.tokens, slot.tuning), f"slot {slot.id} has another text's hashes"
        check_spans(slot.media, slot.tokens)
        source = slot.shares_with
        n_there = 0 if source is None else len(source.tokens)
        assert 0 <= slot.n_shared <= min(len(slot.tokens), n_there), f"slot {slot.id} shares more than is held"
        assert all(0 < c.n_tokens <= len(slot.tokens) for c in slot.checkpoints), f"slot {slot.id}: checkpoints"
        s = slot.sequence
        if s is None:
            continue
        assert slot.tuning == s.tuning, f"slot {slot.id} has another LoRA set than its sequence"
        assert s.slot is slot, f"slot {slot.id} and its sequence disagree"
        assert s.phase in (Phase.PREFILL, Phase.DECODE), f"a {s.phase.value} sequence holds slot {slot.id}"
        assert slot.tokens == s.content[: len(slot.tokens)], f"slot {slot.id} holds other tokens than its sequence"
        assert slot.media == below(s.media, len(slot.tokens)), f"slot {slot.id} holds other media than its sequence"


def check_waiting(waiting: Collection[Running]) -> None:
    """Who waits holds no slot."""
    for s in waiting:
        assert s.slot is None, "a waiting sequence has a slot"
        assert s.phase is Phase.WAITING, "a waiting sequence is not waiting"
