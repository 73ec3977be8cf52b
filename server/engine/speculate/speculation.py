"""Draft tokens of each step of one instance, and what is learned from them. Used by its step thread."""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import expm1, inf
from operator import itemgetter
from random import Random

from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.request import RANDOM_SEED
from server.engine.runner_api import Runner, RunnerInfo
from server.engine.scheduler import TokenRun
from server.engine.sequence import Sequence
from server.engine.speculate.cost import GPU_TOKEN_COST, MODEL_RATE, TOKEN_COST, StepCost, draft_length
from server.engine.speculate.draft_model import MIN_CHUNK, DraftModel
from server.engine.speculate.lookup import Lookup

log = logging.getLogger(__name__)

_LOG_AGAIN_S = 60.0  # after which a fault is logged again
_PAUSE_STEPS = 32  # steps without drafts after a batch found no cells
_REDECODE_FACTOR = 1.5  # cost factor if accepted tokens are decoded again after a rejection
_INDEXED_REPLY = 1024  # reply tokens that an index has room for; older ones are dropped
_MIN_REPLY = 3  # replies this short gain nothing: the token after a draft is the model's
_GOOD_TEXT_RATE = 0.5  # acceptance rate of text drafts that makes a draft model unnecessary: a token is expected
_RATE_RECOVERY = 1 / 256  # recovery towards `MODEL_RATE` per step, so that a draft model is tried again
_FIRST_DRAFT = 2  # tokens of a draft model's first draft, whose cost is unknown
_UNTRIED_GAIN = 0.2  # assumed gain of a sequence from a draft model before its first draft
_DRAFT_COST = 0.15  # initial cost of a draft step, as a share of the model's step
_PREFILL_COST = 0.1  # initial cost of a prefill token, as a share of a draft token
_REPLY_TOKENS = 128  # assumed tokens of a reply
_MAX_PREFILL_SHARE = 0.5  # largest share of a step's time for prefill of the draft model


def speculation(params: EngineParams, runner: Runner, clock: Callable[[], float]) -> "Speculation | None":
    """Return the speculation of an instance, None if it is off."""
    if not runner.info.n_draft_max:
        return None
    drafts = (runner.heads or runner.draft) if params.drafts else None
    model = None if drafts is None else DraftModel(drafts, runner.vocab.eog, clock, runner.heads)
    return Speculation(params, runner.info, model, clock) if params.looks_up or model is not None else None


@dataclass(eq=False)
class Speculation:
    """Proposes draft tokens for every decoding sequence of an instance: from its text, or of the draft model."""

    _params: EngineParams
    _info: RunnerInfo
    _model: DraftModel | None
    _clock: Callable[[], float]
    _pause: int = 0
    _logged_at: float = -inf  # when a fault was logged last

    def __post_init__(self) -> None:
        share = GPU_TOKEN_COST if self._info.deferred else TOKEN_COST
        self._longest_free = self._info.n_draft_max if self._info.can_cut else self._info.n_rollback
        self._cost = StepCost(share if self._longest_free else share / _REDECODE_FACTOR)

    def begin(self, sequence: Sequence) -> None:
        """Set up `sequence`, which got a slot for the first time."""
        params, request = self._params, sequence.request
        most = self._info.n_draft_max if request.spec_n_max < 0 else min(request.spec_n_max, self._info.n_draft_max)
        if 0 <= request.max_tokens < _MIN_REPLY:
            most = 0
        state = sequence.draft_state
        state.most = most
        if params.looks_up and most:
            n_more = _INDEXED_REPLY if request.max_tokens < 0 else min(request.max_tokens, _INDEXED_REPLY)
            state.lookup = Lookup(text_of(request.prompt, request.media), *params.spec_ngram, n_more)
        if self._model is not None and not request.media:  # draft models process no media
            state.most_drafted = min(most, params.spec_draft_max)
            state.least_drafted = params.spec_draft_min if request.spec_n_min < 0 else request.spec_n_min
            state.p_min = params.spec_draft_p_min if request.spec_p_min < 0 else request.spec_p_min
            if params.spec_synth:
                seed = request.sampling.seed
                state.dice = Random(None if seed == RANDOM_SEED else seed)  # noqa: S311 - no secret

    def propose(self, generating: Seq[Sequence], room: int) -> list[list[int]]:
        """Return draft tokens after each sequence's next token, at most `room` in total.

        A step with prefill tokens is treated as if it had none, because these pay for themselves. Never fails: after an
        error the sequences get no more drafts of the draft model, or of their text if there is no model.
        """
        drafts: dict[Sequence, list[int]] = {}
        try:
            # those that are not verified are compared with sampled tokens, too
            texts = {s: s.draft_state.look_up(self._most(s, s.draft_state.most)) for s in generating}
            self._pause = max(self._pause - 1, 0)
            if not self._pause and room > 0:
                drafts = self._chosen(texts, room)
        except Exception as error:  # noqa: BLE001 - logged; a draft must never fail a request
            self._stop(generating, error)
        return [drafts.get(sequence, []) for sequence in generating]

    def _stop(self, generating: Seq[Sequence], error: Exception) -> None:
        """Log `error` unless one was logged lately, and stop the drafts that it concerns."""
        model, now = self._model, self._clock()
        if now >= self._logged_at + _LOG_AGAIN_S:
            self._logged_at = now
            name = "n-gram speculation" if model is None else model.name
            log.warning("%s failed; the current requests continue without it", name, exc_info=error)
        for sequence in generating:
            sequence.draft_state.most_drafted = 0
            if model is None:
                sequence.draft_state.lookup = None
        if model is not None:
            model.forget(generating)

    def _chosen(self, texts: Mapping[Sequence, list[int]], room: int) -> dict[Sequence, list[int]]:
        """Return the drafts that pay, from the `texts` of the step's sequences or the draft model."""
        n, synthetic = len(texts), self._params.spec_synth
        if not (synthetic or self._cost.of(n)):  # step costs are not measured yet
            return {}
        by_model = {} if self._model is None else self._by_model(self._model, texts)
        offers = []  # acceptance rate, longest draft, sequence
        for sequence, text in texts.items():
            if sequence in by_model:
                offers.append((sequence.draft_state.draft_acceptance, by_model[sequence], sequence))
            elif text and not synthetic:
                offers.append((sequence.draft_state.acceptance, len(text), sequence))
        if not offers:
            return {}
        offers.sort(key=itemgetter(0), reverse=True)
        count, length = len(offers), min(len(synthetic), room // n)
        if not synthetic:
            rates, most = [rate for rate, _, _ in offers], max([most for _, most, _ in offers])
            draft_s = self._draft_s(self._cost.of(n)) if by_model else None
            count, length, _ = draft_length(rates, n, self._step_s(n), most, room, draft_s)
            if not count and self._is_untried and offers[0][2] in by_model:
                count, length = 1, min(_FIRST_DRAFT, room)
        drafts: dict[Sequence, list[int]] = {}
        wanted: dict[Sequence, int] = {}
        for _, most, sequence in offers[:count]:
            if sequence not in by_model:
                drafts[sequence] = texts[sequence][:length]
            elif length:
                wanted[sequence] = min(most, max(length, sequence.draft_state.least_drafted), room // count)
        if wanted and self._model is not None:
            for sequence, draft in self._model.draft(wanted).items():
                if synthetic or len(draft) >= sequence.draft_state.least_drafted:
                    drafts[sequence] = draft
                    sequence.draft_state.drafted = draft[::-1]
        return drafts

    def _by_model(self, model: DraftModel, texts: Mapping[Sequence, list[int]]) -> dict[Sequence, int]:
        """Return the sequences that the draft model drafts for now if that pays, and how many tokens at most: not those
        whose text has a high acceptance rate. Prefill a part of the text of one of the others.
        """
        is_synthetic = bool(self._params.spec_synth)
        wanted: dict[Sequence, int] = {}
        for sequence, text in texts.items():
            state = sequence.draft_state
            most = min(self._most(sequence, state.most_drafted), model.n_ctx_seq - sequence.n_computed - 2)
            if most >= max(state.least_drafted, 1) and (
                is_synthetic or not text or state.acceptance < min(_GOOD_TEXT_RATE, state.draft_acceptance)
            ):
                state.draft_acceptance += _RATE_RECOVERY * (MODEL_RATE - state.draft_acceptance)
                wanted[sequence] = most
        near, far = model.ready(list(wanted), reads_all=is_synthetic)
        if far and not is_synthetic:
            self._read_ahead(model, far[0], len(wanted), len(texts))
        return {sequence: wanted[sequence] for sequence in near}

    def _read_ahead(self, model: DraftModel, sequence: Sequence, n_wanted: int, n: int) -> None:
        """Prefill a part of a long text if the rest of the reply is expected to repay it. The estimate assumes drafts
        for all `n_wanted` sequences, which makes each cheaper.
        """
        base_s, request, n_out = self._cost.of(n), sequence.request, len(sequence.output)
        token_s = model.token_s or _PREFILL_COST * _DRAFT_COST * base_s / n
        most = self._most(sequence, sequence.draft_state.most_drafted)
        rates, draft_s = [sequence.draft_state.draft_acceptance] * n_wanted, self._draft_s(base_s)
        _, _, gain = draft_length(rates, n, self._step_s(n), most, n_wanted * most, draft_s)
        gain = max(gain, _UNTRIED_GAIN * n_wanted if self._is_untried else 0.0)
        left = max(_REPLY_TOKENS - n_out, _REPLY_TOKENS // 4)
        if request.max_tokens >= 0:
            left = min(left, request.max_tokens - n_out)
        if left * base_s * -expm1(-gain / n_wanted) > model.n_missing(sequence) * token_s:
            model.read(sequence, max(MIN_CHUNK, int(_MAX_PREFILL_SHARE * base_s / token_s)))

    @property
    def _is_untried(self) -> bool:
        """Whether the draft model has made no draft yet, so that its cost is unknown."""
        return self._model is not None and not self._model.cost.of(1)

    def _step_s(self, n: int) -> Callable[[int, int], float]:
        """Return a function of the seconds of a step with so many tokens, `n` of them without drafts, and drafts of a
        length. Accepted tokens of drafts that are too long to be removed are decoded again.
        """
        cost, base_s, longest = self._cost, self._cost.of(n), self._longest_free
        return lambda n_tokens, length: (
            base_s + (1.0 if length <= longest else _REDECODE_FACTOR) * max(cost.of(n_tokens) - base_s, 0.0)
        )

    def _draft_s(self, base_s: float) -> Callable[[int], float]:
        """Return a function of the seconds of one more token of so many drafts of the draft model."""
        return lambda count: (self._model.cost.of(count) if self._model else 0.0) or _DRAFT_COST * base_s

    def _most(self, sequence: Sequence, most: int) -> int:
        """Limit a draft so that the next token still fits into the context and ``max_tokens``. A step that decodes
        tokens again has no draft.
        """
        if sequence.n_rolled_back:
            return 0
        limit = sequence.request.max_tokens
        most = min(most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if limit < 0 else min(most, limit - len(sequence.output) - 1)

    def takes(self, sequence: Sequence, n: int) -> bool | None:
        """Return whether the `n`-th draft token is accepted in a synthetic benchmark; None = sampling decides."""
        dice, chances = sequence.draft_state.dice, self._params.spec_synth
        return None if dice is None else n < len(chances) and dice.random() < chances[n]

    def no_room(self) -> None:
        """Pause speculation after a batch with drafts found no cells."""
        self._pause = _PAUSE_STEPS

    def observe(self, runs: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """Record that a step with `runs`, of which `n_prompt` tokens were prefill, took `seconds`."""
        if not n_prompt:
            self._cost.observe(sum([len(e.tokens) for e in runs]), seconds)
