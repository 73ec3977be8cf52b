"""Which tokens are guessed in which step of one instance, and what is learned from it. Used by its step thread."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from random import Random

from server.engine.params import EngineParams
from server.engine.request import RANDOM_SEED
from server.engine.runner_api import Runner, RunnerInfo
from server.engine.sequence import Sequence
from server.engine.speculate.chances import Chances
from server.engine.speculate.choice import lengths
from server.engine.speculate.cost import StepCost
from server.engine.speculate.credit import Credit
from server.engine.speculate.draft_cells import DraftCells
from server.engine.speculate.drafting import Drafting, Wanted
from server.engine.speculate.guess import NOTHING, TRIAL, Guess, Step
from server.engine.speculate.lookup import CHUNK, Lookup
from server.engine.speculate.state import Speculating
from server.engine.speculate.synthetic import conditional

_PAUSE = 32  # steps without guesses after a batch found no room
_ENOUGH = 1.0  # tokens expected of a guess from the text that leave nothing to do for a draft model


def speculation(params: EngineParams, runner: Runner, clock: Callable[[], float]) -> "Speculation | None":
    """None where guessing is off, or the model can't take a guess back."""
    info, drafting, chances = runner.info, None, Chances()
    if not info.can_cut or not min(params.n_guesses, info.n_guesses):
        return None
    if params.drafts and runner.draft is not None:
        drafting = Drafting(DraftCells(runner.draft, clock), chances, runner.vocab.eog, clock)
    return Speculation(params, info, chances, drafting) if params.looks_up or drafting is not None else None


class Speculation:
    """Guesses for every generating sequence of an instance."""

    def __init__(self, params: EngineParams, info: RunnerInfo, chances: Chances, drafting: Drafting | None) -> None:
        self._params = params
        self._info = info
        self._chances = chances
        self._drafting = drafting
        self._synthetic = conditional(params.spec_synth)
        self._cost = StepCost()
        self._credit = Credit()
        self._gain_s = 0.0  # what one token more is worth in the step that is under way
        self._pause = 0

    def begin(self, sequence: Sequence) -> None:
        """`sequence` has got a slot for the first time."""
        params, request, slot = self._params, sequence.request, sequence.slot
        most = self._info.n_guesses if request.spec_n_max < 0 else min(request.spec_n_max, self._info.n_guesses)
        if most < 1:
            return
        sequence.speculating = state = Speculating(min(most, params.spec_ngram_max))
        if params.looks_up:
            state.lookup = Lookup(params.spec_ngram_size, self._info.n_ctx_seq)
            state.lookup.extend(request.prompt)
        if self._drafting is not None:
            state.most_drafted = min(most, params.spec_draft_max)
            state.least_drafted = params.spec_draft_min if request.spec_n_min < 0 else request.spec_n_min
            state.p_min = params.spec_draft_p_min if request.spec_p_min < 0 else request.spec_p_min
            if self._synthetic:
                seed = request.sampling.seed
                state.dice = Random(None if seed == RANDOM_SEED else seed)  # noqa: S311 - no secret
            if slot is not None and slot.last is not None:
                self._drafting.answered(len(slot.last.output))

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Index a part of the prompts that are being computed: then there is less to do once they are."""
        left = CHUNK
        for sequence in sequences:
            state = sequence.speculating
            if state is not None and state.lookup is not None and left > 0:
                left -= state.lookup.catch_up(left)

    def guess(self, generating: Seq[Sequence], room: int) -> list[list[int]]:
        """Tokens that may follow each sequence's next one, at most `room` in all.

        A step that carries prompt tokens, too, is looked at as if it did not: they are worth their time.
        """
        if self._synthetic and self._drafting is not None and room > 0:
            return self._always(generating, room, self._drafting)
        if self._pause > 0 or room < 1:
            self._pause = max(self._pause - 1, 0)
            return [[] for _ in generating]
        step = self._step(len(generating))
        if step is None:
            return [[] for _ in generating]
        guesses, reaches = self._look_up(generating)
        trials = self._draft(generating, guesses, reaches, step)
        if not any(reaches):
            return [[] for _ in generating]
        chosen = lengths(reaches, step.n_tokens, step.base_s, step.extra_s, room, step.left_s)
        for i in trials:
            chosen[i] = len(guesses[i].tokens)
        if not any(chosen):
            n = min(TRIAL, room)
            best = max(range(len(reaches)), key=lambda i: sum(reaches[i][:n]))
            if reaches[best] and step.extra_s(n) <= step.trial_s:
                chosen[best], trials = min(n, len(reaches[best])), {best}
        total = sum(chosen)
        if total > room:  # a trial beside guesses that fill the batch
            return [[] for _ in generating]
        self._gain_s = step.base_s / step.n_tokens
        each_s = step.extra_s(total) / total if total else 0.0
        return [
            _noted(sequence, guesses[i].first(n), each_s * n, i in trials)
            for i, (sequence, n) in enumerate(zip(generating, chosen, strict=True))
        ]

    def takes(self, sequence: Sequence, n: int) -> bool | None:
        """Whether the `n`-th guess for `sequence` is taken, where that is left to chance; None: the model decides."""
        state = sequence.speculating
        if state is None or state.dice is None:
            return None
        return n < len(self._synthetic) and state.dice.random() < self._synthetic[n]

    def _always(self, generating: Seq[Sequence], room: int, drafting: Drafting) -> list[list[int]]:
        wanted, places = [], []
        for i, sequence in enumerate(generating):
            state = sequence.speculating
            if state is not None:
                most = min(self._most(sequence, state.most_drafted), len(self._synthetic), room // len(generating))
                if most > 0:
                    wanted.append(Wanted(sequence, state, most))
                    places.append(i)
        tokens: list[list[int]] = [[] for _ in generating]
        for i, each, guess in zip(places, wanted, drafting.always(wanted), strict=True):
            each.state.drafted = True
            tokens[i] = _noted(each.sequence, guess, 0.0, False)
        return tokens

    def _step(self, n: int) -> Step | None:
        """None as long as it is not known what steps cost."""
        cost, base_s = self._cost, self._cost.of(n)
        if base_s <= 0.0:
            return None
        return Step(
            n, base_s, lambda more: max(cost.of(n + more) - base_s, 0.0), self._credit.left_s, self._credit.trial_s
        )

    def _look_up(self, generating: Seq[Sequence]) -> tuple[list[Guess], list[list[float]]]:
        """For each sequence what its text suggests, and how likely each token of that is taken."""
        guesses: list[Guess] = []
        reaches: list[list[float]] = []
        for sequence in generating:
            state, guess = sequence.speculating, NOTHING
            if state is not None:
                state.drafted = False
                most = self._most(sequence, state.most) if state.lookup is not None else 0
                guess = state.lookup.guess(most) if state.lookup is not None and most > 0 else NOTHING
            guesses.append(guess)
            reaches.append(self._chances.reach(guess.kinds, state.own) if state is not None else [])
        return guesses, reaches

    def _draft(
        self, generating: Seq[Sequence], guesses: list[Guess], reaches: list[list[float]], step: Step
    ) -> set[int]:
        """Let the draft model guess where the text suggests little, and where that pays; the places of trials."""
        if self._drafting is None:
            return set()
        wanted, places = [], []
        for i, sequence in enumerate(generating):
            state = sequence.speculating
            if state is not None and sum(reaches[i]) < _ENOUGH:
                most = self._most(sequence, state.most_drafted)
                if most > 0:
                    wanted.append(Wanted(sequence, state, most))
                    places.append(i)
        if not wanted:
            return set()
        drafted = self._drafting.guess(wanted, step)
        self._credit.spend(drafted.seconds, 0.0, trial=drafted.trial)
        trials = set()
        for i, each, guess in zip(places, wanted, drafted.guesses, strict=True):
            if guess.tokens:
                guesses[i], each.state.drafted = guess, True
                reaches[i] = self._chances.reach(guess.kinds, each.state.own_drafted)
                if drafted.trial:
                    trials.add(i)
        return trials

    def _most(self, sequence: Sequence, most: int) -> int:
        """Guesses that leave room for the token behind them, in the context and in what was asked for."""
        limit = sequence.request.max_tokens
        most = min(most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if limit < 0 else min(most, limit - len(sequence.output) - 1)

    def no_room(self) -> None:
        """A batch with guesses found no cells: go on without them for a while."""
        self._pause = _PAUSE

    def observe(self, n_generating: int, n_guessed: int, n_prompt: int, seconds: float) -> None:
        """A step took `seconds`: a token of each of `n_generating` sequences, `n_guessed` guesses, `n_prompt` more."""
        if not n_generating:
            self._cost.observe_prompt(n_prompt, seconds)
            return
        if not n_prompt:
            self._cost.observe(n_generating + n_guessed, seconds)
        self._credit.earn(self._cost.of(n_generating))

    def judge(self, sequence: Sequence, n_right: int) -> None:
        """Of the guesses for `sequence` in the last step, the first `n_right` were sampled, too."""
        state = sequence.speculating
        if state is None or not state.guess.tokens:
            return
        self._chances.learn(state.guess.kinds, n_right, state.own_drafted if state.drafted else state.own)
        if self._drafting is not None and state.drafted:
            self._drafting.learn(len(state.guess.tokens), n_right)
        self._credit.spend(state.cost_s, n_right * self._gain_s, trial=state.trial)
        state.guess = NOTHING


def _noted(sequence: Sequence, guess: Guess, cost_s: float, trial: bool) -> list[int]:
    state = sequence.speculating
    if state is not None:
        state.guess, state.cost_s, state.trial = guess, cost_s, trial
    return guess.tokens
