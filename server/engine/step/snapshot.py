"""What a slot does, for GET /slots. Read from another thread while steps run, so single numbers may be a step apart."""

from dataclasses import dataclass

from server.engine.request import Request
from server.engine.sequence import Slot


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot. ``request`` is what it does, or did last; None when it never did anything. ``n_decoded`` counts
    generated tokens."""

    id: int
    n_ctx: int
    is_processing: bool
    n_requests: int
    n_tokens: int  # in its cells
    request: Request | None = None
    n_prompt_cached: int = 0
    n_prompt_computed: int = 0
    n_decoded: int = 0
    has_new_line: bool = False
    n_checkpoints: int = 0  # places inside it that a prompt can go on from, beside its end
    spec_type: str = "none"  # how its next tokens may be guessed
    scope: str = ""  # of the request, or of what it holds


def snapshot(slot: Slot, first_id: int, n_ctx: int, spec_type: str = "none") -> SlotSnapshot:
    """A copy of what `slot` does now."""
    running = slot.sequence
    sequence = running or slot.last
    n_tokens = len(slot.tokens)
    if sequence is None:
        scope = slot.tuning.scope
        return SlotSnapshot(
            first_id + slot.id, n_ctx, False, slot.n_requests, n_tokens, spec_type=spec_type, scope=scope
        )
    n_prompt = len(sequence.request.prompt)
    n_cached = max(sequence.n_cached, 0)
    return SlotSnapshot(
        id=first_id + slot.id,
        n_ctx=n_ctx,
        is_processing=running is not None,
        n_requests=slot.n_requests,
        n_tokens=n_tokens,
        request=sequence.request,
        n_prompt_cached=n_cached,
        n_prompt_computed=max(min(n_tokens, n_prompt) - n_cached, 0),
        n_decoded=len(sequence.output),
        has_new_line=sequence.text.has_new_line,
        n_checkpoints=len(slot.checkpoints),
        spec_type=spec_type,
        scope=sequence.tuning.scope,
    )
