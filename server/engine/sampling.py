"""After a decode: sample each sequence's next tokens, verify draft tokens, and emit events.

Constrained decoding samples first, checks the token with the matcher, and masks only if it was rejected: a mask over
the vocabulary costs a hundred times as much as checking one token. If several sequences of a step need a mask, all
masks are computed in one call.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from server.engine.kv_store import Cells
from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.request import (
    RANDOM_SEED,
    Finished,
    FinishReason,
    PromptLogprobs,
    Started,
    Text,
    TokenLogprob,
)
from server.engine.runner_api import Mask, Runner
from server.engine.scheduler import TokenRun
from server.engine.sequence import Phase, Sequence
from server.engine.speculate.speculation import Speculation
from server.engine.stats import EngineStats
from server.engine.tickets import Requests
from server.errors import InvalidRequest, NotNumbers
from server.structured.constraint import Constraint

if TYPE_CHECKING:
    from server.structured.grammar.matcher import Masks, MatcherConstraint

log = logging.getLogger(__name__)


Proposal: TypeAlias = tuple[int, TokenLogprob | None, bool]
"""A sampled token, its probabilities after sampling if requested, and whether the constraint allows it."""


class Constrained:
    """Samples constrained sequences. Used by the step thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._masks: Masks | None = None
        self._proposals: dict[int, Proposal] = {}  # of this decode, by output
        self._masked: dict[int, memoryview] = {}  # masks that were computed together, by output

    def propose(self, rows: list[tuple[int, TokenRun]]) -> None:
        """Sample the next token of every constrained sequence, and compute the masks of rejected ones in parallel.

        `rows`: runs with their first outputs. A single sequence is left to `sample`.
        """
        self._proposals.clear()
        self._masked.clear()
        wanted: list[tuple[int, Sequence, Constraint]] = []
        for output, run in rows:
            sequence = run.sequence
            if sequence.constraint is not None and sequence.phase is Phase.DECODE and sequence.request.max_tokens:
                wanted.append((run.next_output(output), sequence, sequence.constraint))
        rejected = {}
        for output, sequence, constraint in wanted if len(wanted) > 1 else ():
            with suppress(Exception):  # `sample` tries again
                token, probs = self._draw(output, sequence)
                allowed = constraint.allows(token)
                self._proposals[output] = token, probs, allowed
                if not allowed and (masked_by := constraint.masked_by()) is not None:
                    rejected[output] = masked_by
        if len(rejected) > 1:
            self._mask_together(rejected)

    def sample(self, output: int, sequence: Sequence) -> tuple[int, TokenLogprob | None]:
        """Return the next token, with its probabilities after sampling if requested."""
        constraint = sequence.constraint
        assert constraint is not None
        if (proposal := self._proposals.get(output)) is not None:
            token, probs, allowed = proposal
        else:
            token, probs = self._draw(output, sequence)
            allowed = constraint.allows(token)
        if not allowed:
            if (mask := self._masked.get(output)) is None:
                constraint.allows(token)  # a mask may depend on the last rejected token, and `_mask` checks others
            token, probs = self._draw(output, sequence, mask or constraint.mask())
        self._runner.accept(sequence.sampler, token)
        constraint.accept(token)
        return token, probs

    def _draw(self, output: int, sequence: Sequence, mask: Mask | None = None) -> tuple[int, TokenLogprob | None]:
        """Sample without accepting; also return the probabilities after sampling if requested."""
        request = sequence.request
        if not (request.want_logprobs and request.post_sampling_probs):
            return self._runner.propose(output, sequence.sampler, mask), None
        probs = self._runner.propose_probs(output, sequence.sampler, request.n_probs, mask)
        return probs.id, probs

    def _mask_together(self, rejected: "dict[int, MatcherConstraint]") -> None:
        try:
            if self._masks is None:
                from server.structured.grammar.matcher import Masks

                self._masks = Masks()
            masks = self._masks.compute(list(rejected.values()))
        except Exception as error:  # noqa: BLE001 - each sequence computes its own mask later: only the faulty one fails
            log.error("%d masks could not be computed together, each is computed alone: %r", len(rejected), error)
            return
        for output, mask in zip(rejected, masks, strict=True):
            if not isinstance(mask, Exception):  # `sample` raises the error
                self._masked[output] = mask


MASK_CANDIDATES = 200
"""Number of most probable tokens among which masked ones are reported."""


@dataclass(eq=False)
class NextTokens:
    """Samples and emits the next tokens of one instance. Used by its step thread. An error ends only the affected
    request.
    """

    _runner: Runner
    _params: EngineParams
    _first_slot: int
    _cells: Cells
    _requests: Requests
    _stats: EngineStats
    _speculation: Speculation | None
    _clock: Callable[[], float]

    def __post_init__(self) -> None:
        info = self._runner.info
        self._vocab = self._runner.vocab
        self._n_most = sys.maxsize if self._params.context_shift and info.can_shift else info.n_ctx_seq
        self._constrained = Constrained(self._runner)
        self._drawn: Mapping[int, int | Exception] = {}  # sampled in parallel for this decode, by output

    def begin(self, sequence: Sequence) -> None:
        """Create the sampler of a choice; each choice of a seeded request gets its own seed."""
        request = sequence.request
        params = request.sampling
        if sequence.index and params.seed != RANDOM_SEED:
            params = replace(params, seed=(params.seed + sequence.index) % RANDOM_SEED)
        sequence.sampler = self._runner.sampler(params, text_of(request.prompt, request.media))
        if self._speculation is not None:
            self._speculation.begin(sequence)

    def choose_samplers(self, runs: list[TokenRun]) -> None:
        """Before a decode: let sequences whose logits are not needed sample in the compute graph."""
        for run in runs:
            sampler = run.sequence.sampler
            if run.n_outputs and sampler is not None:
                # non-finite values of adapters are only detected in logits
                in_graph = _needs_no_logits(run.sequence) and not self._runner.adapters
                self._runner.sample_in_graph(run.seq, sampler if in_graph else None)

    def take(self, runs: list[TokenRun]) -> list[Sequence]:
        """Sample the next tokens of `runs`, which have logits, in output order.

        Return the sequences whose logits are not finite; they are unchanged.
        """
        firsts = accumulate([run.n_outputs for run in runs], initial=0)
        rows = list(zip(firsts, runs, strict=False))  # each run with its first output
        self._sample_together(rows)
        not_finite: list[Sequence] = []
        for output, run in rows:
            sequence = run.sequence
            if sequence.phase is Phase.ENDED:  # another choice of its request failed in this step
                continue
            try:
                if run.scored:
                    self._requests.emit(sequence.ticket, self._score(output, run))
                if run.is_check:
                    self._runner.logprobs(output, 0, 0)
                elif sequence.phase is Phase.DECODE:
                    self._take_verified(run.next_output(output), run)
            except NotNumbers:
                not_finite.append(sequence)
            except Exception as error:  # noqa: BLE001 - `Requests.fail` logs unexpected errors
                self._requests.fail(sequence.ticket, error)
        return not_finite

    def _take_verified(self, output: int, run: TokenRun) -> None:
        """Sample until a draft token is rejected or none is left; roll back the rejected ones."""
        sequence, draft_tokens = run.sequence, run.draft_tokens
        n_matched, matches, reason = 0, True, None
        sequence.n_draft += len(draft_tokens)
        while matches and reason is None:
            draft = draft_tokens[n_matched] if n_matched < len(draft_tokens) else None
            is_forced = None
            if draft is not None and self._speculation is not None:
                is_forced = self._speculation.takes(sequence, n_matched) and draft not in self._vocab.eog
            now = self._clock()
            reason = self._take_one(output + n_matched, sequence, now, draft if is_forced else None)
            matches = draft is not None and sequence.output[-1] == draft and is_forced is not False
            n_matched += matches  # also if it ends the reply
        if draft_tokens:
            # llama-server does not count an end token with draft tokens after it as accepted
            is_eog = sequence.output[-1] in self._vocab.eog
            n_accepted = n_matched - bool(reason and matches and n_matched < len(draft_tokens) and is_eog)
            sequence.n_draft_accepted += n_accepted
            self._stats.add_draft(len(draft_tokens), n_accepted)
            if n_matched < len(draft_tokens):
                self._cells.roll_back(run, len(draft_tokens) - n_matched, self._clock())
        if reason is not None:
            context_full = reason is FinishReason.LIMIT and self._context_full(sequence)
            self.finish(sequence, run.seq, reason, now, context_full=context_full)

    def _take_one(self, output: int, sequence: Sequence, now: float, forced: int | None) -> FinishReason | None:
        """Take the next token from the `output`-th logits. Return why the choice ends with it, if it does.

        A `forced` token is taken regardless of logits and constraint.
        """
        request, stream = sequence.request, sequence.text
        if request.max_tokens == 0:  # the request only caches its prompt
            self._emit_started(sequence, now)
            return FinishReason.LIMIT
        if forced is None:
            token, logprob = self._next_token(output, sequence)
        else:
            token, logprob = forced, None
            assert sequence.sampler is not None
            self._runner.accept(sequence.sampler, forced)
            if request.want_logprobs:
                logprob = self._runner.logprobs(output, forced, request.n_probs)
        if not sequence.output:
            self._emit_started(sequence, now)
        else:
            self._stats.inter_token.observe(now - sequence.last_token_at)
        sequence.last_token_at, sequence.n_faults = now, 0
        sequence.output.append(token)
        if self._speculation is not None:
            sequence.draft_state.add(token)
        self._stats.predicted_tokens += 1
        special = self._params.special  # control tokens are rendered
        is_end = token in self._vocab.eog and not request.sampling.ignore_eos
        if is_end:
            piece = self._vocab.piece(token) if special else b""
            logprob = logprob and replace(logprob, piece=piece, ends=True)
        else:
            piece = self._vocab.piece(token, special=special or token in request.print_special)
        shown = stream.feed(token, piece, logprob)
        if shown is not None:
            self._emit_text(sequence, shown, now)
        return FinishReason.EOS if is_end else self._end_reason(sequence, shown, now)

    def _score(self, output: int, run: TokenRun) -> PromptLogprobs:
        """Return the log probabilities of the prompt tokens after those of `run`, whose logits start at `output`."""
        sequence, runner = run.sequence, self._runner
        end = run.at + len(run.tokens)
        following = sequence.request.prompt[run.at + 1 : end + 1]
        n_top = sequence.request.n_probs
        sequence.n_scored = end
        first = output + run.n_outputs - len(run.tokens)  # only a medium's last token has logits
        tokens = [
            runner.logprobs(at, token, n_top) if token >= 0 else None for at, token in enumerate(following, first)
        ]
        return PromptLogprobs(sequence.index, tuple(tokens))

    def _sample_together(self, rows: list[tuple[int, TokenRun]]) -> None:
        """Compute samples, masks and log probabilities in parallel where possible."""
        self._constrained.propose(rows)
        probs: list[tuple[int, int]] = []
        for first, run in rows:
            request = run.sequence.request
            if run.scored or (request.want_logprobs and not request.post_sampling_probs):
                end = first + (run.n_outputs if run.scored else 1)
                probs += [(output, request.n_probs) for output in range(first, end)]
        if len(probs) > 1:
            self._runner.prepare_logprobs(probs)
        free = (
            [(output, run.sequence.sampler) for output, run in rows if _is_sampled_freely(run)] if len(rows) > 1 else []
        )
        self._drawn = self._runner.sample_together(free) if len(free) > 1 else {}

    def _next_token(self, output: int, sequence: Sequence) -> tuple[int, TokenLogprob | None]:
        runner, sampler, request = self._runner, sequence.sampler, sequence.request
        assert sampler is not None
        mask = after = None
        if sequence.constraint is not None:
            if request.want_logprobs and request.n_forbidden:
                mask = self._mask(output, sequence.constraint, request.n_forbidden)
            token, after = self._constrained.sample(output, sequence)
        elif request.want_logprobs and request.post_sampling_probs:
            after = runner.propose_probs(output, sampler, request.n_probs)
            runner.accept(sampler, token := after.id)
        else:
            drawn = self._drawn.get(output)
            if isinstance(drawn, Exception):
                raise drawn
            token = runner.sample(output, sampler) if drawn is None else drawn
        if not request.want_logprobs:
            return token, None
        after = after or runner.logprobs(output, token, request.n_probs)
        return token, after if mask is None else replace(after, mask=mask)

    def _mask(self, output: int, constraint: Constraint, n: int) -> tuple[int, tuple[TokenLogprob, ...]]:
        """Return ``TokenLogprob.mask``."""
        best = self._runner.logprobs(output, 0, MASK_CANDIDATES).top
        constraint.allows(best[0].id)  # a mask may depend on the last token that was checked
        bits = int.from_bytes(constraint.mask(), "little")
        forbidden = [one for one in best if not bits >> one.id & 1]
        return (bits & (1 << self._vocab.n_tokens) - 1).bit_count(), tuple(forbidden[:n])

    def _emit_started(self, sequence: Sequence, now: float) -> None:
        sequence.prompt_done_at = now
        n_prompt = len(sequence.request.prompt)
        self._stats.prompt_tokens_cached += sequence.n_cached
        self._stats.time_to_first_token.observe(now - sequence.ticket.submitted_at)
        source, _, recompute = sequence.origin
        started = Started(
            sequence.index,
            n_prompt,
            sequence.n_cached,
            self._first_slot + sequence.held.id,
            queue_s=sequence.placed_at - sequence.ticket.waits_since,
            placement_s=sequence.placement_s,
            prefill_s=now - sequence.placed_at - sequence.placement_s,
            source=source,
            recompute=recompute,
        )
        self._requests.emit(sequence.ticket, started)

    def _emit_text(self, sequence: Sequence, text: Text, now: float) -> None:
        if sequence.request.timings_per_token:
            text.timings = sequence.timings(now)
        self._requests.emit(sequence.ticket, text)

    def _context_full(self, sequence: Sequence) -> bool:
        return len(sequence.request.prompt) + len(sequence.output) >= self._n_most

    def _end_reason(self, sequence: Sequence, shown: Text | None, now: float) -> FinishReason | None:
        """Return why the choice ends with its last token, if it does (server-context.cpp, process_token)."""
        request = sequence.request
        if sequence.text.stopping_word:
            return FinishReason.STOP
        if sequence.constraint is not None and sequence.constraint.finished:
            return FinishReason.EOS
        if sequence.text.outdented:
            return FinishReason.LIMIT
        if 0 <= request.max_tokens <= len(sequence.output) or self._context_full(sequence):
            return FinishReason.LIMIT
        over_time = request.deadline_s > 0 and now - sequence.prompt_done_at > request.deadline_s
        if over_time and shown is not None and "\n" in shown.text:
            return FinishReason.LIMIT
        return None

    def finish(
        self, sequence: Sequence, slot: int, reason: FinishReason, now: float, *, context_full: bool = False
    ) -> None:
        """End a choice and emit its last events: the text that was held back, and why it ended.

        `slot`: id of the slot that decoded the last token; the sequence may no longer have it.
        `context_full`: the choice has no cell left for another token.
        """
        if sequence.request.pin_s and (held := sequence.slot) is not None:
            try:
                self._cells.pin(held, now + sequence.request.pin_s, now)
            except InvalidRequest as error:
                self._requests.fail(sequence.ticket, error)
                return
        rest = sequence.text.finish()
        if rest is not None:
            self._emit_text(sequence, rest, now)
        assert sequence.sampler is not None
        finished = Finished(
            index=sequence.index,
            reason=reason,
            stopping_word=sequence.text.stopping_word,
            n_prompt=len(sequence.request.prompt),
            n_cached=sequence.n_cached,
            n_predicted=len(sequence.output),
            timings=sequence.timings(now),
            id_slot=self._first_slot + slot,
            seed=sequence.sampler.seed,
            truncated=context_full or sequence.shifted,
            has_new_line=sequence.text.has_new_line,
            n_tokens=len(sequence.content) - bool(sequence.output),
            context_full=context_full and not 0 <= sequence.request.max_tokens <= len(sequence.output),
        )
        self._requests.emit(sequence.ticket, finished)
        self._requests.end(sequence)


def _needs_no_logits(sequence: Sequence) -> bool:
    """Return whether the sequence needs only sampled tokens."""
    request, is_synthetic = sequence.request, sequence.draft_state.dice is not None
    needs_logits = request.want_logprobs or request.prompt_logprobs or sequence.constraint is not None
    return request.sampling.backend_sampling and not (needs_logits or is_synthetic or sequence.quarantined_until)


def _is_sampled_freely(run: TokenRun) -> bool:
    """Return whether its only token is sampled without a constraint and accepted in any case."""
    sequence = run.sequence
    request = sequence.request
    after_chain = request.want_logprobs and request.post_sampling_probs
    bound = sequence.constraint is not None or run.n_outputs > 1 or run.scored or after_chain
    return not bound and request.max_tokens != 0 and sequence.phase is Phase.DECODE
