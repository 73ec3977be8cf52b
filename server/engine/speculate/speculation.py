"""Draft tokens of each step of one instance, and measurements of their cost. Used by its step thread."""

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from math import expm1, inf
from operator import itemgetter
from random import Random

from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.placement import neighbours
from server.engine.request import RANDOM_SEED
from server.engine.runner_api import Runner, RunnerInfo
from server.engine.scheduler import TokenRun
from server.engine.sequence import Sequence
from server.engine.speculate.cost import GPU_TOKEN_COST, MODEL_RATE, TOKEN_COST, StepCost, draft_length, log_tokens
from server.engine.speculate.draft_model import MIN_CHUNK, DraftModel
from server.engine.speculate.lookup import Lookup

log = logging.getLogger(__name__)

_LOG_AGAIN_S = 60.0  # seconds after which a fault is logged again
_PAUSE_STEPS = 32  # steps without drafts after a batch found no cells
_REDECODE_FACTOR = 1.5  # cost factor if accepted tokens are decoded again after a rejection
_INDEXED_REPLY = 1024  # reply tokens for which an index has space; older ones are dropped
_MIN_REPLY = 3  # tokens; shorter replies gain nothing, because the token after a draft is the model's
_GOOD_TEXT_RATE = 0.75  # acceptance rate of a text draft that makes one of a draft model unnecessary
_RATE_RECOVERY = 1 / 256  # recovery towards `MODEL_RATE` per step, so that a draft model is tried again
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
    """Proposes draft tokens for every decoding sequence of an instance, from its text or by the draft model."""

    _params: EngineParams
    _info: RunnerInfo
    _model: DraftModel | None
    _clock: Callable[[], float]
    _pause: int = 0
    _logged_at: float = -inf  # when a fault was logged last

    def __post_init__(self) -> None:
        share = GPU_TOKEN_COST if self._info.deferred else TOKEN_COST
        self._max_removable = self._info.n_draft_max if self._info.can_cut else self._info.n_rollback
        self._cost = StepCost(share if self._max_removable else share / _REDECODE_FACTOR)
        self._is_split = self._max_removable > 0 and not self._info.unified

    def begin(self, sequence: Sequence) -> None:
        """Set up `sequence`, which got a slot for the first time."""
        params, request = self._params, sequence.request
        most = self._info.n_draft_max if request.spec_n_max < 0 else min(request.spec_n_max, self._info.n_draft_max)
        if 0 <= request.max_tokens < _MIN_REPLY:
            most = 0
        state = sequence.draft_state
        state.max_text_draft = most
        if params.looks_up and most:
            n_more = _INDEXED_REPLY if request.max_tokens < 0 else min(request.max_tokens, _INDEXED_REPLY)
            state.lookup = Lookup(text_of(request.prompt, request.media), *params.spec_ngram, n_more)
        if self._model is not None and not request.media:  # draft models process no media
            state.max_model_draft = min(most, params.spec_draft_max)
            state.min_model_draft = params.spec_draft_min if request.spec_n_min < 0 else request.spec_n_min
            state.p_min = params.spec_draft_p_min if request.spec_p_min < 0 else request.spec_p_min
            if params.spec_synth:
                seed = request.sampling.seed
                state.dice = Random(None if seed == RANDOM_SEED else seed)  # noqa: S311 - no secret

    def propose(self, decoding: Seq[Sequence], max_total: int) -> list[list[int]]:
        """Return draft tokens after each sequence's next token, at most `max_total`.

        A step with prefill tokens is treated as if it had none, because these pay for themselves. Never fails: after an
        error the sequences get no more drafts of the draft model, or of their text if there is no model.
        """
        drafts: dict[Sequence, list[int]] = {}
        try:
            # text drafts that are not verified are also compared with sampled tokens
            texts = {s: s.draft_state.look_up(self._longest(s, s.draft_state.max_text_draft)) for s in decoding}
            self._pause = max(self._pause - 1, 0)
            if not self._pause and max_total > 0:
                drafts = self._chosen(texts, max_total)
        except Exception as error:  # noqa: BLE001 - logged; a draft must never fail a request
            self._stop_drafts(decoding, error)
        return [drafts.get(sequence, []) for sequence in decoding]

    def _stop_drafts(self, decoding: Seq[Sequence], error: Exception) -> None:
        """Log `error` unless one was logged recently, and stop the drafts of the failed source."""
        model, now = self._model, self._clock()
        if now >= self._logged_at + _LOG_AGAIN_S:
            self._logged_at = now
            name = "n-gram speculation" if model is None else model.name
            log.warning("%s failed; the current requests continue without it", name, exc_info=error)
        for sequence in decoding:
            sequence.draft_state.max_model_draft = 0
            if model is None:
                sequence.draft_state.lookup = None
        if model is not None:
            model.clear(decoding)

    def _chosen(self, texts: Mapping[Sequence, list[int]], max_total: int) -> dict[Sequence, list[int]]:
        """Return the drafts that pay, at most `max_total` tokens. `texts`: text drafts of the step's sequences."""
        n, synthetic = len(texts), self._params.spec_synth
        if not (synthetic or self._cost.of(n)):  # step costs are not measured yet
            return {}
        by_model = {} if self._model is None else self._by_model(self._model, texts)
        offers = []  # `log_tokens`, longest draft, sequence
        for sequence, text in texts.items():
            if sequence in by_model:
                longest = by_model[sequence]
                offers.append((log_tokens([sequence.draft_state.draft_acceptance] * longest), longest, sequence))
            elif text and not synthetic:
                offers.append((log_tokens(sequence.draft_state.rates), len(text), sequence))
        if not offers:
            return {}
        offers.sort(key=itemgetter(0), reverse=True)
        count, length = len(offers), min(len(synthetic), max_total // n)
        if not synthetic:
            gains, longest = [gain for gain, _, _ in offers], max([longest for _, longest, _ in offers])
            draft_s = self._draft_s(self._cost.of(n)) if by_model else None
            step_s = self._step_s([s.held.id for s in texts], [s.held.id for *_, s in offers])
            count, length, _ = draft_length(gains, n, step_s, longest, max_total, draft_s)
            if not count and self._is_untried and offers[0][2] in by_model:
                count = length = 1
        drafts: dict[Sequence, list[int]] = {}
        wanted: dict[Sequence, int] = {}
        for _, longest, sequence in offers[:count]:
            if sequence not in by_model:
                drafts[sequence] = texts[sequence][:length]
            elif length:
                wanted[sequence] = min(longest, max(length, sequence.draft_state.min_model_draft), max_total // count)
        if wanted and self._model is not None:
            for sequence, draft in self._model.draft(wanted).items():
                if synthetic or len(draft) >= sequence.draft_state.min_model_draft:
                    drafts[sequence] = draft
                    sequence.draft_state.drafted = draft[::-1]
        return drafts

    def _by_model(self, model: DraftModel, texts: Mapping[Sequence, list[int]]) -> dict[Sequence, int]:
        """Return the sequences for which the draft model can draft now, and the longest drafts. Sequences with a high
        acceptance rate of text drafts are omitted. Prefill a chunk of one sequence that is not ready.
        """
        is_synthetic = bool(self._params.spec_synth)
        wanted: dict[Sequence, int] = {}
        for sequence, text in texts.items():
            state = sequence.draft_state
            longest = min(self._longest(sequence, state.max_model_draft), model.n_ctx_seq - sequence.n_computed - 2)
            if longest >= max(state.min_model_draft, 1) and (
                is_synthetic or not text or state.rates[0] < min(_GOOD_TEXT_RATE, state.draft_acceptance)
            ):
                state.draft_acceptance += _RATE_RECOVERY * (MODEL_RATE - state.draft_acceptance)
                wanted[sequence] = longest
        ready, not_ready = model.ready(list(wanted), prefills_all=is_synthetic)
        if not_ready and not is_synthetic:
            self._prefill_ahead(model, not_ready[0], len(wanted), len(texts))
        return {sequence: wanted[sequence] for sequence in ready}

    def _prefill_ahead(self, model: DraftModel, sequence: Sequence, n_wanted: int, n: int) -> None:
        """Prefill a chunk of a long text if drafts for the rest of the reply are expected to repay the prefill. The
        estimate assumes drafts for all `n_wanted` sequences, which makes each cheaper.
        """
        base_s, request, n_out = self._cost.of(n), sequence.request, len(sequence.output)
        token_s = model.token_s or _PREFILL_COST * _DRAFT_COST * base_s / n
        longest = self._longest(sequence, sequence.draft_state.max_model_draft)
        gains = [log_tokens([sequence.draft_state.draft_acceptance] * longest)] * n_wanted
        draft_s = self._draft_s(base_s)
        step_s = self._step_s(range(n), range(n_wanted))
        _, _, gain = draft_length(gains, n, step_s, longest, n_wanted * longest, draft_s)
        gain = max(gain, _UNTRIED_GAIN * n_wanted if self._is_untried else 0.0)
        left = max(_REPLY_TOKENS - n_out, _REPLY_TOKENS // 4)
        if request.max_tokens >= 0:
            left = min(left, request.max_tokens - n_out)
        if left * base_s * -expm1(-gain / n_wanted) > model.n_missing(sequence) * token_s:
            model.prefill(sequence, max(MIN_CHUNK, int(_MAX_PREFILL_SHARE * base_s / token_s)))

    @property
    def _is_untried(self) -> bool:
        """Whether the draft model has made no draft yet, so that its cost is unknown."""
        return self._model is not None and not self._model.cost.of(1)

    def _step_s(self, ids: Seq[int], drafting: Seq[int]) -> Callable[[int, int], float]:
        """Return a function of the seconds of a step of the slots `ids`, by the number of drafts and their length.

        The slots `drafting` get drafts in this order. If drafts are too long to be removed, accepted tokens are decoded
        again.
        """
        longest, base_s = self._max_removable, self._seconds(self._evaluations(ids, ()), 0)
        evaluations = cache(lambda count: self._evaluations(ids, drafting[:count]))

        def seconds(count: int, length: int) -> float:
            more_s = max(self._seconds(evaluations(count), length) - base_s, 0.0)
            return base_s + (1.0 if length <= longest else _REDECODE_FACTOR) * more_s

        return seconds

    def _seconds(self, evaluations: Iterable[tuple[int, int]], length: float) -> float:
        return sum([self._cost.of(round(n + n_drafts * length)) for n, n_drafts in evaluations])

    def _evaluations(self, ids: Seq[int], drafting: Seq[int]) -> list[tuple[int, int]]:
        """Return the number of next tokens and of drafts in each evaluation of a step of the slots `ids`.

        With separate KV, the library evaluates only neighbours together, and drafts apart from next tokens if not all
        neighbours have one (llama-batch.cpp, split_equal). Steps that save states for a rollback count as one
        evaluation, because their time includes that of saving.
        """
        if not self._is_split:
            return [(len(ids), len(drafting))]
        evaluations: list[tuple[int, int]] = []
        for group in neighbours(ids):
            drafts = [seq for seq in group if seq in drafting]
            if len(drafts) in (0, len(group)):
                evaluations.append((len(group), len(drafts)))
            else:
                evaluations += [(len(group), 0), *((0, len(each)) for each in neighbours(drafts))]
        return evaluations

    def _draft_s(self, base_s: float) -> Callable[[int], float]:
        """Return a function of the seconds of one more token by the draft model, by the number of drafts."""
        return lambda count: (self._model.cost.of(count) if self._model else 0.0) or _DRAFT_COST * base_s

    def _longest(self, sequence: Sequence, most: int) -> int:
        """Return the longest draft, at most `most` tokens, after which the next token still fits into the context and
        ``max_tokens``. A step that decodes tokens again has no draft.
        """
        if sequence.n_rolled_back:
            return 0
        limit = sequence.request.max_tokens
        most = min(most, self._info.n_ctx_seq - sequence.n_computed - 2)
        return most if limit < 0 else min(most, limit - len(sequence.output) - 1)

    def takes(self, sequence: Sequence, n: int) -> bool | None:
        """Return whether the `n`-th draft token is accepted in a synthetic benchmark; None = sampling decides."""
        dice, rates = sequence.draft_state.dice, self._params.spec_synth
        return None if dice is None else n < len(rates) and dice.random() < rates[n]

    def pause(self) -> None:
        """Pause speculation after a batch with drafts found no cells."""
        self._pause = _PAUSE_STEPS

    def observe(self, runs: Seq[TokenRun], n_prompt: int, seconds: float) -> None:
        """Record that a step with `runs`, of which `n_prompt` tokens were prefill, took `seconds`."""
        if n_prompt:
            return
        drafting = [run.seq for run in runs if len(run.tokens) > 1]
        n_drafted = sum([len(run.tokens) for run in runs]) - len(runs)
        length = n_drafted / len(drafting) if drafting else 0.0
        sizes = [round(n + n_drafts * length) for n, n_drafts in self._evaluations([run.seq for run in runs], drafting)]
        estimates = [self._cost.of(size) or size for size in sizes]
        for size, estimate in zip(sizes, estimates, strict=True):  # the measured time is divided like the estimated one
            self._cost.observe(size, seconds * estimate / sum(estimates))
