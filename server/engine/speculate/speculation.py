"""Which tokens are guessed in which step of one instance, and what is learned from it. Used by its step thread."""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from random import Random

from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.request import RANDOM_SEED
from server.engine.runner_api import Runner, RunnerInfo
from server.engine.schedule.scheduler import TokenRun
from server.engine.sequence import Sequence
from server.engine.speculate.cost import Speculating, Step, StepCost, conditional, evaluated, lengths
from server.engine.speculate.draft_model import Draft, DraftCells, Drafting, MtpGuesser
from server.engine.speculate.lookup import CHUNK, sources

_PAUSE = 32  # steps without guesses after a batch found no room
_AGAIN = 1.5  # times what guesses cost where right ones, too, are computed again when those behind them are wrong
_USUAL = 1024  # tokens of a reply that an index has room for; of a longer one it loses what is old
_SHORT = 3  # tokens of a reply that leave nothing to guess: the token behind a guess is the model's
_ENOUGH = 1.0  # tokens expected of a guess from the text that leave nothing to do for a draft model


def speculation(params: EngineParams, runner: Runner, clock: Callable[[], float]) -> "Speculation | None":
    """None where guessing is off. Raises `ConfigError` for a lookup cache that can't be read."""
    drafting, eog = None, runner.vocab.eog
    if not runner.info.n_guesses:
        return None
    if params.drafts and runner.heads is not None:
        drafting = Drafting(MtpGuesser(runner.heads), eog, clock)
    elif params.drafts and runner.draft is not None:
        drafting = Drafting(DraftCells(runner.draft), eog, clock)
    return Speculation(params, runner.info, drafting) if params.looks_up or drafting is not None else None


@dataclass(eq=False)
class Speculation:
    """Guesses for every generating sequence of an instance."""

    _params: EngineParams
    _info: RunnerInfo
    _drafting: Drafting | None
    _cost: StepCost = field(default_factory=StepCost)
    _pause: int = 0

    def __post_init__(self) -> None:
        self._synthetic = conditional(self._params.spec_synth)
        self._sources = sources(self._params)

    def begin(self, sequence: Sequence) -> None:
        """`sequence` has got a slot for the first time."""
        params, request = self._params, sequence.request
        most = self._info.n_guesses if request.spec_n_max < 0 else min(request.spec_n_max, self._info.n_guesses)
        if most < 1 or 0 <= request.max_tokens < _SHORT:
            return
        n_more = _USUAL if request.max_tokens < 0 else min(request.max_tokens, _USUAL)
        sequence.speculating = state = Speculating(
            most, self._sources(len(request.prompt) + n_more, not sequence.tuning.scope)
        )
        for source in state.sources:
            source.extend(text_of(request.prompt, request.media))
        if self._drafting is not None:
            state.most_drafted = min(most, params.spec_draft_max)
            state.least_drafted = params.spec_draft_min if request.spec_n_min < 0 else request.spec_n_min
            state.p_min = params.spec_draft_p_min if request.spec_p_min < 0 else request.spec_p_min
            if self._synthetic:
                seed = request.sampling.seed
                state.dice = Random(None if seed == RANDOM_SEED else seed)  # noqa: S311 - no secret

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Index a part of the prompts that are being computed: then there is less to do once they are."""
        left = CHUNK
        for sequence in sequences:
            if sequence.speculating is not None:
                for source in sequence.speculating.sources:
                    left -= source.catch_up(left) if left > 0 else 0

    def guess(self, generating: Seq[Sequence], room: int) -> list[list[int]]:
        """Tokens that may follow each sequence's next one, at most `room` in all.

        A step that carries prompt tokens, too, is looked at as if it did not: they are worth their time.
        """
        if self._synthetic and self._drafting is not None and room > 0:
            always = [min(len(self._synthetic), room // len(generating))] * len(generating)
            drafts = self._draft(self._drafting, generating, always, None)
            return [drafts[i].tokens if i in drafts else [] for i in range(len(generating))]
        found = [self._look_up(sequence) for sequence in generating]
        self._pause = max(self._pause - 1, 0)
        if self._pause or room < 1 or (self._drafting is None and not any(found)):
            return [[] for _ in generating]
        n = len(generating)
        cost, base_s = self._cost, self._cost.of(n)
        if base_s <= 0.0:  # it is not known yet what steps cost
            return [[] for _ in generating]
        again = 1.0 if self._info.can_cut else _AGAIN
        info = self._info
        step = Step(
            n,
            base_s,
            lambda more: again * max(cost.of(n + more) - base_s, 0.0),
            info.evaluation_tokens,
            info.fills,
        )
        reaches = [s.speculating.reach(len(g)) if s.speculating else [] for s, g in zip(generating, found, strict=True)]
        if self._drafting is not None:
            wanted = [self._params.spec_draft_max if sum(reach) < _ENOUGH else 0 for reach in reaches]
            for i, draft in self._draft(self._drafting, generating, wanted, step).items():
                found[i], reaches[i] = draft.tokens, draft.reach
        chosen = lengths(reaches, step, room)
        return [guess[:n_chosen] for guess, n_chosen in zip(found, chosen, strict=True)]

    def takes(self, sequence: Sequence, n: int) -> bool | None:
        """Whether the `n`-th guess for `sequence` is taken, where that is left to chance; None: the model decides."""
        state = sequence.speculating
        if state is None or state.dice is None:
            return None
        return n < len(self._synthetic) and state.dice.random() < self._synthetic[n]

    def _look_up(self, sequence: Sequence) -> list[int]:
        state = sequence.speculating
        if state is None or sequence.n_taken_back:
            return []
        most = self._most(sequence, state.most)
        return state.look_up(most) if most > 0 else []

    def _draft(
        self, drafting: Drafting, generating: Seq[Sequence], most: Seq[int], step: Step | None
    ) -> dict[int, Draft]:
        """What a draft model guesses, at most so many tokens each, by their places."""
        drafts: dict[int, Draft] = {}
        for i, sequence in enumerate(generating):
            state = sequence.speculating
            if state is not None and not (sequence.n_taken_back or sequence.media):  # a draft model sees none
                n = min(self._most(sequence, state.most_drafted), most[i])
                if n > 0:
                    drafts[i] = Draft(sequence, state, n)
        if drafts:
            drafting.guess(list(drafts.values()), step)
        drafts = {i: draft for i, draft in drafts.items() if draft.tokens}
        for draft in drafts.values():
            draft.state.expect(draft.tokens)
        return drafts

    def _most(self, sequence: Sequence, most: int) -> int:
        """Guesses that leave room for the token behind them, in the context and in what was asked for."""
        limit = sequence.request.max_tokens
        most = min(most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if limit < 0 else min(most, limit - len(sequence.output) - 1)

    def no_room(self) -> None:
        """A batch with guesses found no cells: go on without them for a while."""
        self._pause = _PAUSE

    def observe(self, entries: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """A step with `entries` took `seconds`; `n_prompt` of its tokens are prompts'."""
        n_tokens = sum([len(e.tokens) for e in entries])
        if n_prompt == n_tokens:
            self._cost.observe_prompt(n_prompt, seconds)
        elif not n_prompt:
            if n_tokens > len(entries):
                counts = Counter([len(e.tokens) for e in entries])
                n_tokens = evaluated(counts, self._info.evaluation_tokens, fills=self._info.fills)
            self._cost.observe(n_tokens, seconds)

    def judge(self, sequence: Sequence, n_checked: int, n_right: int) -> None:
        """Of the `n_checked` guesses for `sequence` in the last step, the first `n_right` were sampled, too."""
        state = sequence.speculating
        if state is not None and state.source is not None:
            state.source.judge(n_checked, n_right)
