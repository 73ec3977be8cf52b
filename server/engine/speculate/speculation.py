"""Draft tokens of each step of one instance, and what is learned from them. Used by its step thread."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from random import Random

from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.request import RANDOM_SEED
from server.engine.runner_api import Runner, RunnerInfo
from server.engine.scheduler import TokenRun
from server.engine.sequence import Sequence
from server.engine.speculate.cost import DraftState, StepCost, conditional, draft_length
from server.engine.speculate.draft_model import Draft, DraftCells, Drafting, MtpProposer
from server.engine.speculate.lookup import CHUNK, Lookup

_PAUSE = 32  # steps without drafts after a batch found no cells
_AGAIN = 1.5  # cost factor if accepted tokens are decoded again after a rejection
_USUAL = 1024  # reply tokens that an index has room for; older ones are dropped
_SHORT = 3  # replies this short gain nothing: the token after a draft is the model's
_ENOUGH = 0.5  # acceptance rate of text drafts that makes a draft model unnecessary: a token is expected


def speculation(params: EngineParams, runner: Runner, clock: Callable[[], float]) -> "Speculation | None":
    """Return the speculation of an instance, None if it is off."""
    drafting, eog = None, runner.vocab.eog
    if not runner.info.n_draft_max:
        return None
    if params.drafts and runner.heads is not None:
        drafting = Drafting(MtpProposer(runner.heads), eog, clock)
    elif params.drafts and runner.draft is not None:
        drafting = Drafting(DraftCells(runner.draft), eog, clock)
    return Speculation(params, runner.info, drafting) if params.looks_up or drafting is not None else None


@dataclass(eq=False)
class Speculation:
    """Proposes draft tokens for every decoding sequence of an instance."""

    _params: EngineParams
    _info: RunnerInfo
    _drafting: Drafting | None
    _cost: StepCost = field(default_factory=StepCost)
    _pause: int = 0

    def __post_init__(self) -> None:
        self._synthetic = conditional(self._params.spec_synth)

    def begin(self, sequence: Sequence) -> None:
        """Set up `sequence`, which got a slot for the first time."""
        params, request = self._params, sequence.request
        most = self._info.n_draft_max if request.spec_n_max < 0 else min(request.spec_n_max, self._info.n_draft_max)
        if most < 1 or 0 <= request.max_tokens < _SHORT:
            return
        sequence.draft_state = state = DraftState(most)
        if params.looks_up:
            size, longest = params.spec_ngram
            n_more = _USUAL if request.max_tokens < 0 else min(request.max_tokens, _USUAL)
            state.lookup = Lookup(size, len(request.prompt) + n_more, longest)
            state.lookup.extend(text_of(request.prompt, request.media))
        if self._drafting is not None:
            state.most_drafted = min(most, params.spec_draft_max)
            state.least_drafted = params.spec_draft_min if request.spec_n_min < 0 else request.spec_n_min
            state.p_min = params.spec_draft_p_min if request.spec_p_min < 0 else request.spec_p_min
            if self._synthetic:
                seed = request.sampling.seed
                state.dice = Random(None if seed == RANDOM_SEED else seed)  # noqa: S311 - no secret

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Index a part of the prompts that are being prefilled, to spread the work."""
        left = CHUNK
        for sequence in sequences:
            state = sequence.draft_state
            if state is not None and state.lookup is not None and left > 0:
                left -= state.lookup.catch_up(left)

    def propose(self, generating: Seq[Sequence], room: int) -> list[list[int]]:
        """Return draft tokens after each sequence's next token, at most `room` in total.

        A step with prefill tokens is treated as if it had none, because these pay for themselves.
        """
        n = len(generating)
        drafts: list[list[int]] = [[] for _ in generating]
        found = [self._look_up(sequence) for sequence in generating]
        self._pause = max(self._pause - 1, 0)
        if self._pause or room < 1 or (self._drafting is None and not any(found)):
            return drafts
        if self._synthetic:
            most = [min(len(self._synthetic), room // n)] * n
            self._draft(generating, most, room, None, drafts)
            return drafts
        if not self._cost.of(n):  # step costs are not measured yet
            return drafts
        step_s, states = self._step_s(n), [sequence.draft_state for sequence in generating]
        rates = [state.acceptance if state and found[i] else 0.0 for i, state in enumerate(states)]
        most = [self._params.spec_draft_max if rate < _ENOUGH else 0 for rate in rates]
        self._draft(generating, most, room, step_s, drafts)
        repeating = sorted([i for i in range(n) if rates[i] and not drafts[i]], key=lambda i: -rates[i])
        if repeating:
            longest, room = max([len(found[i]) for i in repeating]), room - sum(map(len, drafts))
            chosen = draft_length([rates[i] for i in repeating], n, step_s, longest, room)
            for i in repeating[: chosen.count]:
                drafts[i] = found[i][: chosen.length]
        return drafts

    def _look_up(self, sequence: Sequence) -> list[int]:
        """Return a draft from the text, whose tokens are compared with sampled ones also if it is not verified."""
        state = sequence.draft_state
        if state is None or sequence.n_rolled_back:
            return []
        most = self._most(sequence, state.most)
        return state.look_up(most) if most > 0 else []

    def _draft(
        self,
        generating: Seq[Sequence],
        most: Seq[int],
        room: int,
        step_s: Callable[[int], float] | None,
        drafts: list[list[int]],
    ) -> None:
        """Add to `drafts` those of a draft model, with at most `most` tokens each and `room` in all."""
        wanted: dict[int, Draft] = {}
        for i, sequence in enumerate(generating):
            state = sequence.draft_state
            if state is not None and not (sequence.n_rolled_back or sequence.media):  # draft models process no media
                n = min(self._most(sequence, state.most_drafted), most[i])
                if n > 0:
                    wanted[i] = Draft(sequence, state, n)
        if wanted and self._drafting is not None:
            self._drafting.propose(list(wanted.values()), len(generating), room, step_s)
        for i, draft in wanted.items():
            if draft.tokens:
                drafts[i] = draft.tokens
                draft.state.expect(draft.tokens)

    def _step_s(self, n: int) -> Callable[[int], float]:
        """Return a function of the seconds of a step with so many tokens, `n` of them without drafts."""
        cost, base_s = self._cost, self._cost.of(n)
        again = 1.0 if self._info.can_cut else _AGAIN
        return lambda n_tokens: base_s + again * max(cost.of(n_tokens) - base_s, 0.0)

    def _most(self, sequence: Sequence, most: int) -> int:
        """Limit a draft so that the next token still fits into the context and ``max_tokens``."""
        limit = sequence.request.max_tokens
        most = min(most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if limit < 0 else min(most, limit - len(sequence.output) - 1)

    def takes(self, sequence: Sequence, n: int) -> bool | None:
        """Return whether the `n`-th draft token is accepted in a synthetic benchmark; None = sampling decides."""
        state = sequence.draft_state
        if state is None or state.dice is None:
            return None
        return n < len(self._synthetic) and state.dice.random() < self._synthetic[n]

    def no_room(self) -> None:
        """Pause speculation after a batch with drafts found no cells."""
        self._pause = _PAUSE

    def observe(self, entries: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """Record that a step with `entries`, of which `n_prompt` tokens were prefill, took `seconds`."""
        n_tokens = sum([len(e.tokens) for e in entries])
        if n_prompt == n_tokens:
            self._cost.observe_prompt(n_prompt, seconds)
        elif not n_prompt:
            self._cost.observe(n_tokens, seconds)
