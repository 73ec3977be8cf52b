"""llama.cpp's sampling fields, in every wire format that generates (tools/server/server-schema.cpp).

Ranges are llama-server's: past a soft limit a value becomes the limit, past a hard one it is an error. Unlike there,
samplers and biases that can't be read are errors, and ``repeat_last_n: -1`` still means the whole context.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from server.dialects.fields import (
    MAX_MAGNITUDE,
    Body,
    Count,
    CountOrAll,
    Fraction,
    Number,
    SoftCount,
    Whole,
    clamped,
    field_error,
    within,
)
from server.dialects.logit_bias import Biases, banned_everything, read_logit_bias, token_biases
from server.dialects.warnings import GONE_SAMPLER_CHAR, GONE_SAMPLERS
from server.engine.request import SAMPLER_LETTERS, SAMPLERS, SamplingParams, sampler_named
from server.vocab import Vocab

MAX_SAMPLERS = 32
MAX_SEQUENCE_BREAKERS = 64
Seed = Annotated[Whole, Field(ge=-(2**63), le=2**64 - 1)]


def _positive(value: float) -> float:
    if value < _LEAST_PENALTY:
        raise ValueError("penalty_repeat must be finite and greater than 0")
    return value


_LEAST_PENALTY = 1e-38  # its reciprocal is still a finite float32 (llama.cpp common/sampling.cpp)
RepeatPenalty = Annotated[Number, AfterValidator(_positive)]


class SamplingFields(Body):
    """Every field of `SamplingParams` under its llama-server name; absent = the model's own default."""

    seed: Seed | None = None
    temperature: Annotated[Number, AfterValidator(clamped(0.0, MAX_MAGNITUDE))] | None = None
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    top_k: SoftCount | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    top_n_sigma: Number | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    typical_p: Number | None = None
    repeat_last_n: CountOrAll | None = None
    repeat_penalty: RepeatPenalty | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    dry_multiplier: Number | None = None
    dry_base: Number | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: CountOrAll | None = None
    dry_sequence_breakers: Any = None
    mirostat: Annotated[Whole, AfterValidator(clamped(0, 2))] | None = None
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    adaptive_target: Annotated[Number, AfterValidator(clamped(-MAX_MAGNITUDE, 1.0))] | None = None
    adaptive_decay: Annotated[float, AfterValidator(within(0.0, 0.99))] | None = None
    min_keep: Count | None = None
    ignore_eos: bool | None = None
    backend_sampling: bool | None = None
    samplers: Any = None
    logit_bias: Any = None

    @field_validator("dry_sequence_breakers")
    @classmethod
    def _readable_breakers(cls, value: object) -> tuple[str, ...]:
        return read_breakers(value)

    @field_validator("samplers")
    @classmethod
    def _known_samplers(cls, value: object) -> tuple[str, ...]:
        return read_samplers(value)

    @field_validator("logit_bias")
    @classmethod
    def _readable_bias(cls, value: object) -> Biases:
        return read_logit_bias(value)


_PLAIN_FIELDS = tuple(
    set(SamplingFields.model_fields) - {"seed", "samplers", "logit_bias", "dry_sequence_breakers", "dry_base"}
)


def read_breakers(value: object) -> tuple[str, ...]:
    """DRY's sequence breakers."""
    if not isinstance(value, list) or not value or not all(isinstance(breaker, str) for breaker in value):
        raise ValueError("Error: dry_sequence_breakers must be a non-empty array of strings")
    if len(value) > MAX_SEQUENCE_BREAKERS:
        raise ValueError(f"must have at most {MAX_SEQUENCE_BREAKERS} strings")
    return tuple(value)


def read_samplers(value: object) -> tuple[str, ...]:
    """Sampler names from a list of names or a string of letters (llama-server takes both)."""
    if isinstance(value, str):
        found = [(letter, SAMPLER_LETTERS.get(letter)) for letter in value if letter != GONE_SAMPLER_CHAR]
    elif isinstance(value, list):
        names = [name for name in value if name not in GONE_SAMPLERS]
        found = [(name, sampler_named(name) if isinstance(name, str) else None) for name in names]
    else:
        raise ValueError("must be a list of sampler names or a string of sampler letters")
    if len(found) > MAX_SAMPLERS:
        raise ValueError(f"must have at most {MAX_SAMPLERS} entries")
    return tuple(_known(name, sampler) for name, sampler in found)


def _known(name: object, sampler: str | None) -> str:
    if sampler is None:
        known = ", ".join(f"{letter} ({full})" for full, letter in SAMPLERS.items())
        raise ValueError(f"unknown sampler {str(name)[:40]!r}; known: {known}")
    return sampler


def sampling_params(fields: SamplingFields, defaults: SamplingParams, vocab: Vocab, n_ctx: int) -> SamplingParams:
    """Return the model's `defaults`, overridden by the request's fields.

    Sizes that the native library allocates (windows, k) are limited to the context and the vocabulary, beyond which
    they have no effect. Raises `InvalidRequest` if the bias forbids all tokens.
    """
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(fields, name)) is not None}
    if fields.seed is not None:
        given["seed"] = fields.seed & 0xFFFFFFFF  # -1 becomes RANDOM_SEED, as in C
    if fields.samplers is not None:
        given["samplers"] = fields.samplers
    if fields.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = fields.dry_sequence_breakers
    if fields.dry_base is not None and fields.dry_base >= 1:  # otherwise the default, as in llama-server
        given["dry_base"] = fields.dry_base
    if fields.logit_bias is not None:
        given["logit_bias"] = token_biases(fields.logit_bias, vocab)
        if banned_everything(given["logit_bias"], vocab.n_tokens):
            raise field_error("logit_bias", "bans every token of the vocabulary")
    params = replace(defaults, **given)
    return replace(
        params,
        top_k=min(max(params.top_k, 0), vocab.n_tokens),
        min_keep=min(params.min_keep, vocab.n_tokens),
        repeat_last_n=_window(params.repeat_last_n, n_ctx),
        dry_penalty_last_n=_window(params.dry_penalty_last_n, n_ctx),
        dry_allowed_length=min(params.dry_allowed_length, n_ctx),
    )


def _window(n: int, n_ctx: int) -> int:
    """A window over the last tokens: -1 is the whole context."""
    return n_ctx if n < 0 else min(n, n_ctx)
