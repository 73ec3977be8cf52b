"""Input and output of the engine as plain values, independent of dialects and the native library, and the checks that a
request must pass before it is queued.

No value is changed after its creation. Values that are created for each request or token are not frozen, because
creating a frozen one takes seven times as long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar, cast

from server.engine.media import Spans
from server.errors import ContextExceeded, InvalidRequest
from server.structured.constraint import Constraint

BACKGROUND_PRIORITY = 1 << 20
"""Requests of this priority or more run in the background: they use only idle capacity. A more urgent (live) request
that waits for a slot preempts them, and no step contains them while a live prompt is prefilled.
"""
SAMPLERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "adaptive_p": "a",
    "infill": "i",
}
"""Sampler names and the letter of each (llama.cpp common/sampling.cpp, common_sampler_type_to_chr)."""
SAMPLER_LETTERS = {letter: name for name, letter in SAMPLERS.items()}
_SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typicalp": "typ_p"}
_SQUEEZED_SAMPLERS = {name.replace("_", ""): name for name in SAMPLERS} | _SAMPLER_ALIASES
DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: a new seed for each request

Adapters: TypeAlias = tuple[tuple[int, float], ...]
"""A LoRA set: (adapter id, scale) in ascending order of ids, without scale 0. Part of the cache key."""


def sampler_named(name: str) -> str | None:
    """Return the canonical sampler name, or None. Ignores case, ``-`` and ``_``; accepts llama-server's short names."""
    return _SQUEEZED_SAMPLERS.get(name.strip().lower().replace("-", "").replace("_", ""))


@dataclass(frozen=True, slots=True)
class Parameter:
    """How clients and operators set a sampling parameter, besides its name and type.

    ``flags`` and ``env``: see `server.options.option.option`, as ``limits`` of options. In a request, a value past
    ``soft`` becomes the limit, and a value past ``hard`` is an error. A float without either is limited to a million.
    """

    flags: str
    env: str | bool
    soft: tuple[float, float] | None
    hard: tuple[float, float] | None
    limits: Mapping[str, Any]


T = TypeVar("T", bound=float)
_INT32_MAX = 2**31 - 1


def _parameter(
    default: T,
    flags: str = "",
    *,
    env: str | bool = "",
    soft: tuple[float, float] | None = None,
    hard: tuple[float, float] | None = None,
    **limits: float,
) -> T:
    """Return a dataclass field with its `Parameter`."""
    return field(default=default, metadata={"parameter": Parameter(flags, env, soft, hard, limits)})


@dataclass(slots=True, unsafe_hash=True)
class SamplingParams:
    """llama-server's sampler chain with its defaults (llama.cpp common/common.h, common_params_sampling).

    This is the table of sampling parameters: request bodies, flags, YAML, their documentation, ``/props`` and the web
    UI derive from it. A field's docstring documents the option.
    """

    seed: int = RANDOM_SEED
    temperature: float = _parameter(0.8, "--temp --temperature", env="LLAMA_ARG_TEMPERATURE", soft=(0.0, 1e6))
    """Sampling temperature; higher values give more varied text, 0 or less = greedy."""
    dynatemp_range: float = _parameter(0.0, "--dynatemp-range", ge=0)
    """Dynamic temperature: range around the temperature; 0 = off."""
    dynatemp_exponent: float = _parameter(1.0, "--dynatemp-exp")
    """Dynamic temperature: exponent that maps entropy to temperature."""
    top_k: int = _parameter(40, "--top-k", env=True, soft=(0, _INT32_MAX))
    """Keep the k most likely tokens; 0 = off."""
    top_p: float = _parameter(0.95, "--top-p", env=True, soft=(0.0, 1.0), ge=0)
    """Keep the most likely tokens whose probabilities add up to this value; 1 = off."""
    min_p: float = _parameter(0.05, "--min-p", env=True, soft=(0.0, 1.0), ge=0)
    """Drop tokens whose probability is below this fraction of the most probable token's; 0 = off."""
    top_n_sigma: float = _parameter(-1.0, "--top-nsigma --top-n-sigma")
    """Keep tokens within n standard deviations of the best logit; negative = off."""
    xtc_probability: float = _parameter(0.0, "--xtc-probability", soft=(0.0, 1.0), ge=0)
    """Probability that XTC removes the top tokens; 0 = off."""
    xtc_threshold: float = _parameter(0.1, "--xtc-threshold", soft=(0.0, 1.0), ge=0)
    """XTC: tokens above this probability may be removed; above 0.5 = off."""
    typical_p: float = _parameter(1.0, "--typical --typical-p", ge=0)
    """Locally typical sampling: probability mass to keep; 1 = off."""
    repeat_last_n: int = _parameter(64, "--repeat-last-n", hard=(-1, _INT32_MAX), ge=0)
    """Number of last tokens that penalties consider; 0 = off."""
    repeat_penalty: float = _parameter(1.0, "--repeat-penalty", env=True, gt=0)
    """Factor that reduces the logits of repeated tokens; 1 = off."""
    presence_penalty: float = _parameter(0.0, "--presence-penalty", env=True)
    """Value subtracted from the logits of tokens that occurred; 0 = off."""
    frequency_penalty: float = _parameter(0.0, "--frequency-penalty", env=True)
    """Value subtracted from a token's logit for each occurrence; 0 = off."""
    dry_multiplier: float = _parameter(0.0, "--dry-multiplier", ge=0)
    """DRY: penalty multiplier; 0 = off."""
    dry_base: float = _parameter(1.75, "--dry-base", ge=1)
    """DRY: base of the exponential penalty."""
    dry_allowed_length: int = _parameter(2, "--dry-allowed-length", hard=(0, _INT32_MAX), ge=0)
    """DRY: repetitions up to this length are not penalized."""
    dry_penalty_last_n: int = _parameter(64, "--dry-penalty-last-n", hard=(-1, _INT32_MAX), ge=0)
    """DRY: number of last tokens considered; 0 = off."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = _parameter(0, "--mirostat", soft=(0, 2), ge=0, le=2)
    """Mirostat version; replaces all samplers except temperature; 0 = off."""
    mirostat_tau: float = _parameter(5.0, "--mirostat-ent", ge=0)
    """Mirostat: target entropy (tau)."""
    mirostat_eta: float = _parameter(0.1, "--mirostat-lr", ge=0)
    """Mirostat: learning rate (eta)."""
    adaptive_target: float = _parameter(-1.0, "--adaptive-target", soft=(-1e6, 1.0), le=1)
    """Adaptive-p: target probability of selected tokens; negative = off."""
    adaptive_decay: float = _parameter(0.9, "--adaptive-decay", hard=(0.0, 0.99), ge=0, le=0.99)
    """Adaptive-p: decay of the moving average; higher values adapt more slowly."""
    min_keep: int = _parameter(0, hard=(0, _INT32_MAX), ge=0)
    """Minimum number of tokens that top-p, min-p, typical and XTC keep."""
    ignore_eos: bool = _parameter(False, "--ignore-eos")
    """Never sample an end-of-generation token."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    backend_sampling: bool = _parameter(False, "-bs --backend-sampling", env="LLAMA_ARG_BACKEND_SAMPLING")
    """Sample in the compute graph for requests that need no logits (docs/speculation.md). A request opts out with
    backend_sampling: false.
    """

    @property
    def uses_dry(self) -> bool:
        """Whether a DRY sampler is part of the chain and has an effect."""
        enabled = bool(self.dry_multiplier and self.dry_base >= 1.0 and self.dry_penalty_last_n)
        return enabled and not self.mirostat and "dry" in self.samplers


PARAMETERS: Mapping[str, tuple[type, Parameter]] = {
    each.name: (cast(type, each.type), each.metadata["parameter"])
    for each in fields(SamplingParams)
    if "parameter" in each.metadata
}
"""The type and the `Parameter` of each number and switch of `SamplingParams`. Other fields have their own parsers."""
NUMBERS = tuple(each.name for each in fields(SamplingParams) if each.type in (int, float))
"""Names of the parameters that are numbers."""


class State(StrEnum):
    """The state of a request and of each of its choices, as logs, metrics and the web UI name it. A refused or failed
    request also has the reason: the name of its error.
    """

    WAITING = "waiting"  # for its model or a slot
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CUT_OFF = "cut off"  # the client left before the end of the reply


class FinishReason(StrEnum):
    """Why generation ended; each dialect maps it to its own values."""

    EOS = "eos"  # an end-of-generation token
    STOP = "word"  # a stop string
    LIMIT = "limit"  # max_tokens, the time limit, or a full context


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log probability. ``piece`` is the token's bytes, possibly a part of a character.

    ``mask``, if requested: how many tokens the constraint allowed at this position, and the most probable tokens that
    it masked, of the `MASK_CANDIDATES` most probable ones.
    """

    id: int
    piece: bytes
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    ends: bool = False  # an end-of-generation token, which has no text
    mask: "tuple[int, tuple[TokenLogprob, ...]] | None" = None


@dataclass(slots=True)
class Timings:
    """Counts and milliseconds of one sequence, as in llama-server's ``timings`` object."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0  # draft tokens
    draft_n_accepted: int = 0


@dataclass(slots=True)
class Started:
    """The prompt is in the KV cells. The first event of every choice, sent just before its first text.

    Durations in seconds: ``queue_s`` until it got a slot, ``placement_s`` to copy or load the cached prefix,
    ``prefill_s`` from then to now. ``source`` and ``recompute``: where the cached tokens came from, and why the others
    were prefilled (`snapshots.Source`, `snapshots.RecomputeReason`).
    """

    index: int
    n_prompt: int
    n_cached: int
    id_slot: int = -1
    queue_s: float = 0.0
    placement_s: float = 0.0
    prefill_s: float = 0.0
    source: str = ""
    recompute: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A part of the prompt was prefilled (sent only if the request asks for it)."""

    index: int
    total: int
    cached: int
    computed: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of prompt tokens given the tokens before them, starting with the second token. None for media
    tokens. One event per step. Sent only for the first choice, because they are equal for all; other choices may start
    earlier.
    """

    index: int
    tokens: tuple[TokenLogprob | None, ...]


@dataclass(slots=True)
class Text:
    """New text of one choice: whole characters, never a part of a stop string.

    ``tokens`` are the ids since the last event. ``logprobs`` is empty unless requested. ``timings`` is set if the
    request asked for timings per token.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    timings: Timings | None = None


@dataclass(slots=True)
class Finished:
    """The last event of a choice."""

    index: int
    reason: FinishReason
    stopping_word: str
    n_prompt: int
    n_cached: int
    n_predicted: int
    timings: Timings
    id_slot: int
    seed: int
    truncated: bool = False  # the context was full or was shifted
    has_new_line: bool = False
    n_tokens: int = 0  # in the slot's cells at the end, llama-server's ``tokens_cached``
    context_full: bool = False  # the context ended the choice, and not a limit of the request


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that failed; `error` is from `server.errors`."""

    error: Exception


Event = Started | Progress | PromptLogprobs | Text | Finished | Failed


@dataclass(slots=True)
class Request:
    """A request for ``n`` choices of one prompt.

    ``prompt`` is never empty; ``media`` are represented by its negative tokens. ``max_tokens`` < 0: until the context
    is full. ``want_logprobs``: return each token's log probability. ``n_probs`` > 0: also those of so many most
    probable tokens. ``prompt_logprobs``: also those of the prompt's tokens; the whole prompt is then computed.
    ``deadline_s`` limits the time of generation, checked at new lines (llama-server's ``t_max_predict_ms``); 0 = none.
    ``first_token_timeout_s`` and ``request_timeout_s`` count from the arrival to the first token and to the end. They
    can only shorten the engine's settings; 0 = those. ``print_special``: control tokens that are rendered as text, such
    as tool-call tags.

    ``adapters``: the LoRA set of this request; None = the default set at its submission.
    ``n_keep`` and ``n_discard``: tokens that a context shift keeps (-1 = the prompt) and drops (0 = half of the rest).
    ``n_cache_reuse`` > 0: runs of at least so many cached tokens are reused by shifting their positions.
    ``n_indent`` > 0: generation ends at the first line that is indented by fewer blanks.
    ``n_forbidden`` > 0: with log probabilities, return so many masked tokens, and how many the constraint allowed.
    ``post_sampling_probs``: log probabilities after the sampler chain, instead of the model's own.
    ``spec_n_max``, ``spec_n_min`` and ``spec_p_min`` limit the draft; negative = as configured.
    ``cache_scope``: the cache namespace of the client and its salt (`engine.cache.scope`).
    ``cache_key``: requests of one client with the same key prefer the same instance (OpenAI's ``prompt_cache_key``).
    ``log_id``: the id of its HTTP request, for the log.
    ``arrived_at``: the time of the first attempt, by the engine's clock; 0 = now. Time limits count from it.
    ``pin_s`` > 0: the computed prompt stays in RAM for so many seconds.
    ``priority``: lower is served earlier. ``client``: an opaque name for fair queueing.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    n: int = 1
    n_probs: int = 0
    want_logprobs: bool = False
    n_forbidden: int = 0
    prompt_logprobs: bool = False
    cache_prompt: bool = True
    id_slot: int = -1
    deadline_s: float = 0.0
    first_token_timeout_s: float = 0.0
    request_timeout_s: float = 0.0
    return_progress: bool = False
    timings_per_token: bool = False
    print_special: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    adapters: Adapters | None = None
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    n_indent: int = 0
    post_sampling_probs: bool = False
    spec_n_max: int = -1
    spec_n_min: int = -1
    spec_p_min: float = -1.0
    pin_s: float = 0.0
    priority: int = 0
    client: str = ""
    cache_scope: str = ""
    cache_key: str = ""
    media: Spans = ()
    log_id: str = ""
    arrived_at: float = 0.0

    def __post_init__(self) -> None:
        self.want_logprobs = self.want_logprobs or self.n_probs > 0


Sink = Callable[[list[Event]], None]
"""The receiver of a request's events. Called on the event loop, at most once per step."""


# ---- checks before a request is queued


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a generating engine. Counts are tokens, except slots."""

    n_vocab: int
    n_ctx_seq: int
    n_slots: int
    n_ubatch: int
    media: bool  # whether a projector is loaded

    def check(self, request: Request) -> None:
        """Check a request against the limits. Raises `InvalidRequest` or `ContextExceeded`."""
        prompt = request.prompt
        if not prompt:
            raise InvalidRequest("the prompt is empty", "prompt")
        if len(prompt) >= self.n_ctx_seq:
            raise ContextExceeded(len(prompt), self.n_ctx_seq)
        if request.media:
            self._check_media(request)
        elif min(prompt) < 0 or max(prompt) >= self.n_vocab:
            raise self._outside()
        if not -1 <= request.id_slot < self.n_slots:
            raise InvalidRequest(f"id_slot must be -1 or one of 0 to {self.n_slots - 1}", "id_slot")
        if request.n < 1:
            raise InvalidRequest("n must be at least 1", "n")

    def check_slot(self, id_slot: int) -> None:
        """Raise `InvalidRequest` for a slot id that does not exist."""
        if not 0 <= id_slot < self.n_slots:
            raise InvalidRequest(f"id_slot must be one of 0 to {self.n_slots - 1}", "id_slot")

    def _check_media(self, request: Request) -> None:
        """Check media spans and that the library can decode each of them."""
        at = n_media = 0
        for span in request.media:
            if not self.media or span.chunk is None or span.start < at or span.end > len(request.prompt):
                raise InvalidRequest("the prompt has media that are not this model's", "prompt")
            at, n_media = span.end, n_media + span.n_tokens
            if not span.chunk.causal and span.n_tokens > self.n_ubatch:
                raise InvalidRequest(
                    f"a medium has {span.n_tokens} tokens, which this model reads all at once, and n_ubatch is "
                    f"{self.n_ubatch}: set ubatch-size to {span.n_tokens} or more",
                    "prompt",
                )
        if sum(token < 0 for token in request.prompt) != n_media or max(request.prompt) >= self.n_vocab:
            raise self._outside()

    def _outside(self) -> InvalidRequest:
        return InvalidRequest(f"a token id is outside the vocabulary (0 to {self.n_vocab - 1})", "prompt")
