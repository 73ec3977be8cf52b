"""The sampler chain of one sequence, with llama-server's order and rules (llama.cpp common/sampling.cpp).

Parameters are checked first, because the library aborts or returns garbage with some values.
"""

import ctypes
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from server.engine.request import RANDOM_SEED, SAMPLERS, SamplingParams
from server.errors import InternalError, InvalidRequest
from server.llama.library import C, fast
from server.llama.vocab import LlamaVocab

_DryKey = tuple[float, float, int, int, tuple[str, ...]]

MAX_BREAKERS = 128
_BREAKER_BYTES = 40  # of a breaker that the library uses
_MAX_BREAKER_WORK = 100_000  # matches: seconds of time, and 20 MB for each copy of the sampler
_MAX_FLOAT = 3.4028234663852886e38
_MAX_INT = (1 << 31) - 1
_FLOATS, _INTS = (
    tuple(each.name for each in fields(SamplingParams) if each.type is kind and each.name != "seed")
    for kind in (float, int)
)


def check_sampling(params: SamplingParams, n_vocab: int) -> None:
    """Raise `InvalidRequest` with the name of the first invalid parameter."""
    for name in _FLOATS:
        value = getattr(params, name)
        if not math.isfinite(value) or abs(value) > _MAX_FLOAT:
            raise InvalidRequest(f"{name} must be a finite number, not {value}", name)
    for name in _INTS:
        value = getattr(params, name)
        if abs(value) > _MAX_INT:
            raise InvalidRequest(f"{name} must fit 32 bits, not {value}", name)
    if params.repeat_penalty < 1 / _MAX_FLOAT:
        raise InvalidRequest(f"repeat_penalty must be greater than 0, not {params.repeat_penalty}", "repeat_penalty")
    if params.min_keep < 0:
        raise InvalidRequest(f"min_keep must be at least 0, not {params.min_keep}", "min_keep")
    if not 0 <= params.seed <= RANDOM_SEED:
        raise InvalidRequest(f"seed must be within 0 and {RANDOM_SEED}, not {params.seed}", "seed")
    if params.mirostat not in (0, 1, 2):
        raise InvalidRequest(f"mirostat must be 0, 1 or 2, not {params.mirostat}", "mirostat")
    for name in params.samplers:
        if name not in SAMPLERS:
            raise InvalidRequest(f"unknown sampler '{name}'; known: {', '.join(SAMPLERS)}", "samplers")
    if len(params.dry_sequence_breakers) > MAX_BREAKERS:
        raise InvalidRequest(f"at most {MAX_BREAKERS} dry_sequence_breakers are possible", "dry_sequence_breakers")
    for token, bias in params.logit_bias:
        if not 0 <= token < n_vocab:
            raise InvalidRequest(f"token {token} is outside the vocabulary of {n_vocab}", "logit_bias")
        if math.isnan(bias) or bias > _MAX_FLOAT:
            raise InvalidRequest(f"the bias of token {token} must be a number below infinity", "logit_bias")


_MIROSTAT_M = 100  # as in llama-server
_CACHED_DRY, _CACHED_WORK = 64, 4 * _MAX_BREAKER_WORK


class NativeSampler:
    """A native sampler chain, which must be closed.

    ``seed``: the seed in use, also if it was random. ``remembers``: whether accepting a token changes later samples.
    ``lowered``: for a greedy chain, the tokens whose logits it lowers first; otherwise None. ``in_graph``: whether the
    chain can run in the graph. It runs for the sequence ``seq`` unless that is -1, and ``on_close`` detaches it.
    ``n_biases``: the number of logit biases, which the chain adds first.
    """

    n_biases = 0

    def __init__(
        self, chain: int, seed: int, remembers: bool, lowered: frozenset[int] | None = None, *, in_graph: bool = False
    ) -> None:
        self._chain: int | None = chain
        self.seed = seed
        self.remembers = remembers
        self.lowered = lowered
        self.in_graph = in_graph
        self.seq = -1
        self.on_close: Callable[[NativeSampler], None] | None = None

    @property
    def chain(self) -> int:
        """The native chain; raises `InternalError` after `close`."""
        if self._chain is None:
            raise InternalError("a sampler was used after it was closed")
        return self._chain

    @property
    def members(self) -> list[int]:
        """The samplers of the native chain, in order."""
        return [C.llama_sampler_chain_get(self.chain, i) for i in range(C.llama_sampler_chain_n(self.chain))]

    def renew(self) -> None:
        """Replace the chain by a copy, which was never attached to a graph."""
        chain = self.chain
        self._chain = C.llama_sampler_clone(chain)
        fast.sampler_free(chain)

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self.on_close is not None:
            self.on_close(self)
        chain, self._chain = self._chain, None
        if chain is not None:
            fast.sampler_free(chain)

    def __del__(self) -> None:
        self.close()


class SamplerFactory:
    """Builds the chains of one context. Only its step thread may call it, except `prepare`."""

    def __init__(self, vocab: LlamaVocab, n_ctx: int) -> None:
        self._vocab = vocab
        self._n_ctx = n_ctx
        # DRY reads the whole vocabulary for each breaker (up to 0.5 s), so samplers are cached and copied
        self._dry: OrderedDict[_DryKey, tuple[NativeSampler, int]] = OrderedDict()  # with its matches
        self._dry_lock = threading.Lock()

    def is_prepared(self, params: SamplingParams) -> bool:
        """Return whether `build` takes little time. Thread-safe."""
        return not params.uses_dry or self._dry_key(params) in self._dry

    def prepare(self, params: SamplingParams) -> None:
        """Cache the DRY sampler of `params`. Raises `InvalidRequest` for invalid parameters. Thread-safe."""
        check_sampling(params, self._vocab.n_tokens)
        if params.uses_dry:
            self._cached_dry(params)

    def build(self, params: SamplingParams, prompt: Sequence[int]) -> NativeSampler:
        """Return a chain that has accepted `prompt`. Raises `InvalidRequest` for invalid parameters."""
        check_sampling(params, self._vocab.n_tokens)
        if "infill" in params.samplers and self._vocab.eot == self._vocab.eos == -1:  # the library would abort
            raise InvalidRequest("the sampler 'infill' needs a model with an end token", "samplers")
        seed = secrets.randbelow(RANDOM_SEED) if params.seed == RANDOM_SEED else params.seed
        n_penalized, n_dry = self._windows(params)
        remembers = bool(n_penalized or n_dry or (params.mirostat == 0 and "adaptive_p" in params.samplers))
        biases = self._biases(params)
        greedy = not remembers and _is_greedy(params) and all(bias <= 0.0 for _, bias in biases)
        lowered = frozenset(token for token, _ in biases) if greedy else None
        in_graph = not remembers and _fits_a_graph(params, self._vocab.n_tokens)
        sampler = NativeSampler(new_chain(), seed, remembers, lowered, in_graph=in_graph)
        sampler.n_biases = len(biases)
        for member in self._members(params, seed, biases):
            fast.sampler_chain_add(sampler.chain, member)
        history = max(n_penalized, n_dry)
        for token in prompt[-history:] if history else ():
            self._vocab.check(token)
            fast.sampler_accept(sampler.chain, token)
        return sampler

    def close(self) -> None:
        """Free the cached DRY samplers."""
        self._dry.clear()

    def _windows(self, params: SamplingParams) -> tuple[int, int]:
        """Return the last tokens that penalties and DRY consider; 0 = off. -1 in a request is the whole context."""
        if params.mirostat:
            return 0, 0
        neutral = params.repeat_penalty == 1.0 and not params.presence_penalty and not params.frequency_penalty
        penalties = 0 if neutral or "penalties" not in params.samplers else self._window(params.repeat_last_n)
        return penalties, self._window(params.dry_penalty_last_n) if params.uses_dry else 0

    def _window(self, last_n: int) -> int:
        return self._n_ctx if last_n < 0 else min(last_n, self._n_ctx)

    def _members(self, params: SamplingParams, seed: int, biases: list[tuple[int, float]]) -> Iterator[int]:
        """Yield the native samplers of a chain, in order."""
        if biases:
            array = (C.llama_logit_bias * len(biases))(*biases)
            yield C.llama_sampler_init_logit_bias(self._vocab.n_tokens, len(biases), array)
        if params.mirostat:
            yield fast.sampler_init_temp(params.temperature)
            entropy = params.mirostat_tau, params.mirostat_eta
            if params.mirostat == 1:
                yield fast.sampler_init_mirostat(self._vocab.n_tokens, seed, *entropy, _MIROSTAT_M)
            else:
                yield fast.sampler_init_mirostat_v2(seed, *entropy)
            return
        keep = params.min_keep
        for name in params.samplers:
            match name:
                case "penalties":
                    window, n_vocab = self._window(params.repeat_last_n), self._vocab.n_tokens
                    penalties = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
                    yield fast.sampler_init_penalties(n_vocab, window, *penalties)
                case "dry":
                    cached = self._cached_dry(params)  # keeps it alive: another thread may remove it from the cache
                    yield C.llama_sampler_clone(cached.chain)
                case "top_n_sigma":
                    yield fast.sampler_init_top_n_sigma(params.top_n_sigma)
                case "top_k":
                    yield fast.sampler_init_top_k(params.top_k)
                case "typ_p":
                    yield fast.sampler_init_typical(params.typical_p, keep)
                case "top_p":
                    yield fast.sampler_init_top_p(params.top_p, keep)
                case "min_p":
                    yield fast.sampler_init_min_p(params.min_p, keep)
                case "xtc":
                    yield fast.sampler_init_xtc(params.xtc_probability, params.xtc_threshold, keep, seed)
                case "temperature":
                    dynamic = params.dynatemp_range, params.dynatemp_exponent
                    yield fast.sampler_init_temp_ext(params.temperature, *dynamic)
                case "infill":  # it compares all pairs of candidates, which would take minutes for a vocabulary
                    yield fast.sampler_init_top_k(MAX_CANDIDATES)
                    yield C.llama_sampler_init_infill(self._vocab.pointer)
        if "adaptive_p" in params.samplers:
            yield fast.sampler_init_adaptive_p(params.adaptive_target, params.adaptive_decay, seed)
        else:
            yield fast.sampler_init_dist(seed)

    def _biases(self, params: SamplingParams) -> list[tuple[int, float]]:
        biases = list(params.logit_bias)
        if params.ignore_eos:
            biases.extend((token, float("-inf")) for token in sorted(self._vocab.eog))
        biases.extend((token, float("-inf")) for token in self._vocab.suppressed)
        return biases

    def _cached_dry(self, p: SamplingParams) -> NativeSampler:
        key = self._dry_key(p)
        with self._dry_lock:
            if key in self._dry:
                self._dry.move_to_end(key)
                return self._dry[key][0]
        sampler, n_matches = self._new_dry(*key)
        with self._dry_lock:
            self._dry[key] = sampler, n_matches
            while len(self._dry) > _CACHED_DRY or sum(n for _, n in self._dry.values()) > _CACHED_WORK:
                self._dry.popitem(last=False)
        return sampler

    def _dry_key(self, p: SamplingParams) -> _DryKey:
        window = self._window(p.dry_penalty_last_n)
        return p.dry_multiplier, p.dry_base, p.dry_allowed_length, window, p.dry_sequence_breakers

    def _new_dry(
        self, multiplier: float, base: float, allowed_length: int, window: int, breakers: Sequence[str]
    ) -> tuple[NativeSampler, int]:
        """Return a DRY sampler and the number of matches of its breakers. Raises `InvalidRequest`."""
        for text in breakers if self._vocab.missing_bytes else ():  # the library tokenizes parts of the text
            if not text.isascii():
                raise InvalidRequest("the model's vocabulary cannot spell every text", "dry_sequence_breakers")
            self._vocab.tokenize(text, add_special=False, parse_special=False)
        cut = (text.encode("utf-8", "replace").partition(b"\0")[0][:_BREAKER_BYTES] for text in breakers)
        used = [raw for raw in dict.fromkeys(cut) if raw]
        n_matches = self._n_matches(used)
        texts = (ctypes.c_char_p * len(used))(*used)
        limits = multiplier, base, allowed_length, window
        chain = C.llama_sampler_init_dry(self._vocab.pointer, *limits, texts, len(used))
        return NativeSampler(chain, 0, True), n_matches

    def _n_matches(self, breakers: Sequence[bytes]) -> int:
        """Return how many tokens breakers match. Raises `InvalidRequest` for too many.

        The library keeps each token that contains one, and for each that ends with the start of one it tokenizes the
        rest (llama-sampler.cpp, get_overlapping_token_sequences).
        """
        pieces = self._vocab.terminated_pieces()
        n = 0
        for raw in breakers:
            n += sum(pieces.count(raw[:size] + b"\0") for size in range(1, len(raw))) + pieces.count(raw) // 4
            if n > _MAX_BREAKER_WORK:
                reason = (
                    "dry_sequence_breakers match too many tokens of the vocabulary; use fewer, or rarer first letters"
                )
                raise InvalidRequest(reason, "dry_sequence_breakers")
        return n


def _is_greedy(p: SamplingParams) -> bool:
    """Return whether a chain without biases and penalties selects the highest logit."""
    members = p.samplers
    no_random = p.mirostat == 0 and "temperature" in members and p.temperature <= 0.0 and p.dynatemp_range <= 0.0
    may_drop = ("xtc" in members and p.xtc_probability > 0.0) or ("typ_p" in members and p.typical_p < 1.0)
    return no_random and not may_drop and "infill" not in members and "adaptive_p" not in members


_IN_GRAPH = ("top_k", "top_p", "min_p", "temperature")
_MIN_TEMPERATURE, _MAX_MIN_P = 0.01, 0.9
MAX_CANDIDATES = 256
"""Candidates of a random draw in the graph, and of the sampler infill."""


def _fits_a_graph(p: SamplingParams, n_vocab: int) -> bool:
    """Return whether the graph gives the same tokens as the chain, without penalties, on the CPU.

    It does not with:
    - typical-p, XTC, top-n-sigma, adaptive-p, mirostat, infill and min_keep, which have no graph form
      (llama-sampler.cpp, backend_apply)
    - values and orders on which the library aborts or drops all candidates: top_k above the vocabulary, a high min_p
    - random draws from many candidates: the library adds their probabilities in 32 bits, and a draw above the sum
      selects the last candidate
    - top-p of many candidates, whose graph needs more memory than is reserved (`graph.largest_chains`)
    """
    members = [name for name in p.samplers if name in _IN_GRAPH]
    in_order = members == [name for name in _IN_GRAPH if name in members]
    off = {"typ_p": p.typical_p >= 1.0, "xtc": p.xtc_probability <= 0.0, "top_n_sigma": p.top_n_sigma <= 0.0}
    others = all(off.get(name, name in ("penalties", "dry")) for name in p.samplers if name not in _IN_GRAPH)
    plain = p.mirostat == 0 and not p.min_keep and not p.logit_bias and p.dynatemp_range <= 0.0
    in_range = p.top_k <= n_vocab and p.min_p <= _MAX_MIN_P
    greedy = "temperature" in members and p.temperature <= 0.0
    uses_top_p = "top_p" in members and p.top_p < 1.0
    few = (greedy and not uses_top_p) or ("top_k" in members and 0 < p.top_k <= MAX_CANDIDATES)
    finite = p.temperature <= 0.0 or p.temperature >= _MIN_TEMPERATURE
    return in_order and others and plain and in_range and few and finite


_CHAIN_PARAMS = C.llama_sampler_chain_default_params()
_CHAIN_PARAMS.no_perf = True


def new_chain() -> int:
    """Return an empty native chain; the caller frees it."""
    chain: int = fast.sampler_chain_init(_CHAIN_PARAMS)
    return chain
