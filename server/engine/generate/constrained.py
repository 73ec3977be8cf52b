"""Constrained decoding: sample first, check the token with the matcher, and mask only if it was rejected.

A mask over the vocabulary costs a hundred times as much as checking one token. If several sequences of a step need a
mask, all masks are computed in one call.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.engine.request import TokenLogprob
from server.engine.runner_api import Runner
from server.engine.schedule.scheduler import TokenRun
from server.engine.sequence import Phase, Sequence
from server.structured.constraint import Constraint

if TYPE_CHECKING:  # llguidance is slow to import
    from server.structured.grammar.matcher import Masks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Proposal:
    """A sampled token and whether the constraint allows it. ``mask`` is set if it was rejected and the mask is
    computed.

    ``error``: sampling failed; raised when the sequence is sampled.
    """

    constraint: Constraint
    token: int = -1
    probs: TokenLogprob | None = None
    allowed: bool = False
    mask: memoryview | None = None
    error: Exception | None = None


class Constrained:
    """Samples constrained sequences. Used by the step thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._masks: Masks | None = None
        self._proposals: dict[int, Proposal] = {}  # by output

    def propose(self, entries: list[TokenRun]) -> None:
        """Sample the next token of every constrained sequence, and compute the masks of rejected ones in parallel.

        `entries` have logits, in output order. A single sequence is left to `sample`.
        """
        self._proposals.clear()
        if sum([entry.sequence.constraint is not None for entry in entries]) < 2:
            return
        wanted: list[tuple[int, Sequence, Constraint]] = []
        output = 0
        for entry in entries:
            sequence = entry.sequence
            if sequence.constraint is not None and sequence.phase is Phase.DECODE and sequence.request.max_tokens:
                wanted.append((entry.next_output(output), sequence, sequence.constraint))
            output += entry.n_outputs
        if len(wanted) < 2:
            return
        for output, sequence, constraint in wanted:
            try:
                self._proposals[output] = self._proposed(output, sequence, constraint)
            except Exception as error:  # noqa: BLE001 - raised in `sample`
                self._proposals[output] = Proposal(constraint, error=error)
        self._mask_together()

    def sample(self, output: int, sequence: Sequence) -> tuple[int, TokenLogprob | None]:
        """Return the next token, with its probabilities after sampling if requested."""
        runner, sampler, constraint = self._runner, sequence.sampler, sequence.constraint
        assert sampler is not None
        assert constraint is not None
        made = self._proposals.pop(output, None) or self._proposed(output, sequence, constraint)
        if made.error is not None:
            raise made.error
        token, probs = made.token, made.probs
        if made.allowed:
            runner.accept(sampler, token)
        else:
            mask = constraint.mask() if made.mask is None else made.mask
            if probs is None:
                token = runner.sample_constrained(output, sampler, mask)
            else:
                probs = runner.propose_probs(output, sampler, sequence.request.n_probs, mask)
                runner.accept(sampler, token := probs.id)
        constraint.accept(token)
        return token, probs

    def _proposed(self, output: int, sequence: Sequence, constraint: Constraint) -> Proposal:
        sampler, request, probs = sequence.sampler, sequence.request, None
        if request.post_sampling_probs and request.want_logprobs:
            probs = self._runner.propose_probs(output, sampler, request.n_probs)
        token = self._runner.propose(output, sampler) if probs is None else probs.id
        return Proposal(constraint, token, probs, constraint.allows(token))

    def _mask_together(self) -> None:
        refused = []
        for made in self._proposals.values():
            if not made.allowed and made.error is None:
                masked_by = made.constraint.masked_by()
                if masked_by is not None:
                    refused.append((made, masked_by))
        if len(refused) < 2:
            return
        try:
            if self._masks is None:
                from server.structured.grammar.matcher import Masks

                self._masks = Masks()
            masks = self._masks.compute([masked_by for _, masked_by in refused])
        except Exception as error:  # noqa: BLE001 - each sequence computes its own mask later: only the faulty one fails
            log.error("%d masks could not be computed together, each is by itself: %r", len(refused), error)
            return
        for (made, _), mask in zip(refused, masks, strict=True):
            if isinstance(mask, Exception):
                made.error = mask
            else:
                made.mask = mask
