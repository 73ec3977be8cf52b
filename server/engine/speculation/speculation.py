"""Which tokens are guessed in which step of one instance, and what is learned from it. Used by its step thread."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from server.engine.params import EngineParams
from server.engine.protocols import RunnerInfo
from server.engine.sequence import Sequence
from server.engine.speculation.chances import Chances
from server.engine.speculation.choice import lengths
from server.engine.speculation.cost import StepCost
from server.engine.speculation.credit import Credit
from server.engine.speculation.guess import NOTHING, Guess
from server.engine.speculation.lookup import CHUNK, Lookup
from server.engine.speculation.state import Speculating

TRIAL = 2  # tokens of a guess that is made to see whether guessing pays again
_PAUSE = 32  # steps without guesses after a batch found no room
_FORGET = 0.1


def speculation(params: EngineParams, info: RunnerInfo) -> "Speculation | None":
    """None where guessing is off, or the model can't take a guess back."""
    if params.spec_type == "none" or not info.can_cut or info.n_guesses < 1:
        return None
    return Speculation(params, info)


class Speculation:
    """Guesses for every generating sequence of an instance."""

    def __init__(self, params: EngineParams, info: RunnerInfo) -> None:
        self._params = params
        self._info = info
        self._cost = StepCost()
        self._chances = Chances()
        self._credit = Credit()
        self._mixed_s = 0.0  # a step that carries prompt tokens, too
        self._gain_s = 0.0  # what one token more is worth in the step that is under way
        self._pause = 0

    def begin(self, sequence: Sequence) -> None:
        """`sequence` has got a slot for the first time."""
        most = min(self._params.spec_draft_max, self._info.n_guesses)
        lookup = Lookup(self._params.spec_ngram_size, self._info.n_ctx_seq)
        lookup.extend(sequence.request.prompt)
        sequence.speculating = Speculating(most, lookup)

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Index a part of the prompts that are being computed: then there is less to do once they are."""
        left = CHUNK
        for sequence in sequences:
            state = sequence.speculating
            if state is not None and state.lookup is not None and left > 0:
                left -= state.lookup.catch_up(left)

    def guess(self, generating: Seq[Sequence], room: int, *, mixed: bool) -> list[list[int]]:
        """Tokens that may follow each sequence's next one, at most `room` in all.

        ``mixed``: the step carries prompt tokens beside them.
        """
        n_plain, plain_s = len(generating), self._cost.of(len(generating))
        base_s = max(self._mixed_s, plain_s) if mixed else plain_s
        if self._pause > 0 or base_s <= 0.0:
            self._pause = max(self._pause - 1, 0)
            return [[] for _ in generating]

        def extra_s(n: int) -> float:
            return max(self._cost.of(n_plain + n) - plain_s, 0.0)

        guesses = [self._find(sequence) for sequence in generating]
        reaches = [
            self._chances.reach(guess.kinds, s.speculating.own) if s.speculating is not None else []
            for guess, s in zip(guesses, generating, strict=True)
        ]
        chosen = lengths(reaches, n_plain, base_s, extra_s, room, self._credit.left_s)
        trial = not any(chosen)
        if trial:
            n = min(TRIAL, room)
            best = max(range(n_plain), key=lambda i: sum(reaches[i][:n]))
            chosen[best] = n if reaches[best] and extra_s(n) <= self._credit.trial_s else 0
        self._gain_s = base_s / n_plain
        total = sum(chosen)
        each_s = extra_s(total) / total if total else 0.0
        return [
            self._note(sequence, guess.first(n), each_s * n, trial)
            for sequence, guess, n in zip(generating, guesses, chosen, strict=True)
        ]

    def _find(self, sequence: Sequence) -> Guess:
        state = sequence.speculating
        if state is None or state.lookup is None:
            return NOTHING
        most = self._most(sequence, state)
        return state.lookup.guess(most) if most > 0 else NOTHING

    def _most(self, sequence: Sequence, state: Speculating) -> int:
        """Guesses that leave room for the token behind them, in the context and in what was asked for."""
        request = sequence.request
        most = min(state.most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if request.max_tokens < 0 else min(most, request.max_tokens - len(sequence.output) - 1)

    @staticmethod
    def _note(sequence: Sequence, guess: Guess, cost_s: float, trial: bool) -> list[int]:
        state = sequence.speculating
        if state is not None:
            state.guess, state.cost_s, state.trial = guess, cost_s, trial
        return guess.tokens

    def no_room(self) -> None:
        """A batch with guesses found no cells: go on without them for a while."""
        self._pause = _PAUSE

    def observe(self, n_generating: int, n_guessed: int, seconds: float, *, mixed: bool) -> None:
        """A step took `seconds`: a token of each of `n_generating` sequences, `n_guessed` guesses, and prompts."""
        if not n_generating:
            return
        if mixed:
            self._mixed_s += (_FORGET if self._mixed_s else 1.0) * (seconds - self._mixed_s)
            self._credit.earn(self._mixed_s)
        else:
            self._cost.observe(n_generating + n_guessed, seconds)
            self._credit.earn(self._cost.of(n_generating))

    def judge(self, sequence: Sequence, n_right: int) -> None:
        """Of the guesses for `sequence` in the last step, the first `n_right` were sampled, too."""
        state = sequence.speculating
        if state is None or not state.guess.tokens:
            return
        self._chances.learn(state.guess.kinds, n_right, state.own)
        self._credit.spend(state.cost_s, n_right * self._gain_s, trial=state.trial)
        state.guess = NOTHING
