"""Checks sampling parameters before they cross into the library, which would abort or return garbage on some."""

import math

from server.engine.request import RANDOM_SEED, SamplingParams
from server.errors import InvalidRequest

KNOWN_SAMPLERS = frozenset(
    (
        *("dry", "top_k", "top_p", "top_n_sigma", "typ_p", "min_p", "temperature"),
        *("xtc", "infill", "penalties", "adaptive_p"),
    )
)
MAX_BREAKERS = 128
_MAX_FLOAT = 3.4028234663852886e38
_MAX_INT = (1 << 31) - 1
_FLOATS = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_p", "min_p", "top_n_sigma", "xtc_probability"),
    *("xtc_threshold", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier"),
    *("dry_base", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
)
_INTS = ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n", "min_keep")


def check_sampling(params: SamplingParams, n_vocab: int) -> None:
    """Raises `InvalidRequest` naming the field. The rules on penalties are llama.cpp's (common/sampling.cpp)."""
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
        if name not in KNOWN_SAMPLERS:
            raise InvalidRequest(f"unknown sampler '{name}'; known: {', '.join(sorted(KNOWN_SAMPLERS))}", "samplers")
    _check_breakers(params.dry_sequence_breakers)
    for token, bias in params.logit_bias:
        if not 0 <= token < n_vocab:
            raise InvalidRequest(f"token {token} is outside the vocabulary of {n_vocab}", "logit_bias")
        if math.isnan(bias) or bias > _MAX_FLOAT:
            raise InvalidRequest(f"the bias of token {token} must be a number below infinity", "logit_bias")


def _check_breakers(breakers: tuple[str, ...]) -> None:
    if len(breakers) > MAX_BREAKERS:
        raise InvalidRequest(f"at most {MAX_BREAKERS} dry_sequence_breakers are possible", "dry_sequence_breakers")
