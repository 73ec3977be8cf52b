"""llama.cpp's sampling fields and ``logit_bias``, in every dialect that generates (tools/server/server-schema.cpp).

Ranges are llama-server's: values beyond a soft limit are clamped, values beyond a hard limit are errors. Unlike there,
invalid samplers and biases are errors, and ``repeat_last_n: -1`` means the whole context.

``logit_bias`` is an object ``{"15": 1.5, " Hello": false}`` or a list of pairs ``[[15, 1.5], [" Hello", false]]``. A
key is a token id, or a text for all its tokens; ``false`` bans a token.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from server.dialects.fields import Body, Number, TextOrStrings, Whole, clamped, field_error, within
from server.dialects.warnings import GONE_SAMPLERS
from server.engine.request import PARAMETERS, SAMPLER_LETTERS, SAMPLERS, Parameter, SamplingParams, sampler_named
from server.errors import short_json
from server.vocab import Vocab

Biases = tuple[tuple[int | str, float], ...]
MAX_ENTRIES = 65536
MAX_BATCH = 4 * MAX_ENTRIES
"""Maximum entries for all choices of all prompts of one body. Each choice has its own copy in the native library and in
``generation_settings``.
"""
_MAX_BIAS = 1e30
_TOKEN_ID = re.compile(r"-?[0-9]{1,11}")
"""Matches keys of an object that are token ids."""
NEVER = -math.inf


def read_logit_bias(value: object) -> Biases:
    """Return (token id or text, bias) pairs. Raises ValueError with the reason."""
    if isinstance(value, dict | list) and len(value) > MAX_ENTRIES:
        raise ValueError(f"must have at most {MAX_ENTRIES} entries")
    if isinstance(value, dict):
        pairs: list[object] = [[int(key) if _TOKEN_ID.fullmatch(key) else key, bias] for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise ValueError("must be an object of token to bias or a list of [token, bias] pairs")
    return tuple(_bias_pair(index, pair) for index, pair in enumerate(pairs))


def _bias_pair(index: int, pair: object) -> tuple[int | str, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"entry {index} must be a [token, bias] pair")
    token, bias = pair
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise ValueError(f"entry {index}: the token must be a token id or a string")
    if bias is False:
        return token, NEVER
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise ValueError(f"entry {index}: the bias must be a number or false")
    if not abs(bias) <= _MAX_BIAS:
        raise ValueError(f"entry {index}: the bias must be within -{_MAX_BIAS:g} and {_MAX_BIAS:g}")
    return token, float(bias)


def token_biases(bias: Biases, vocab: Vocab) -> tuple[tuple[int, float], ...]:
    """Return the biases by token id, with texts tokenized.

    Raises `InvalidRequest` for an id outside of the vocabulary, and for too many entries. Each entry takes time of the
    step thread, which delays other requests.
    """
    found: list[tuple[int, float]] = []
    for token, value in bias:
        if isinstance(token, str):
            found += ((t, value) for t in vocab.tokenize(token, add_special=False, parse_special=False))
            if len(found) > MAX_ENTRIES:
                raise field_error("logit_bias", f"has more than {MAX_ENTRIES} tokens")
        elif 0 <= token < vocab.n_tokens:
            found.append((token, value))
        else:
            raise field_error(
                "logit_bias", f"token id {token} is outside of the vocabulary (0 to {vocab.n_tokens - 1})"
            )
    return tuple(found)


_BIAS_SCHEMA = {
    "anyOf": [{"type": "object", "additionalProperties": {"type": ["number", "boolean"]}}, {"type": "array"}],
    "description": "Token or text to bias; as pairs, too.",
}
MAX_SAMPLERS = 32
MAX_SEQUENCE_BREAKERS = 64
Seed = Annotated[Whole, Field(ge=-(2**63), le=2**64 - 1)]


def _positive(value: float) -> float:
    if value < _MIN_PENALTY:
        raise ValueError("penalty_repeat must be finite and greater than 0")
    return value


_MIN_PENALTY = 1e-38  # its reciprocal is still a finite float32 (llama.cpp common/sampling.cpp)
Breakers = Annotated[list[str], Field(min_length=1, max_length=MAX_SEQUENCE_BREAKERS), AfterValidator(tuple)]
RepeatPenalty = Annotated[Number, AfterValidator(_positive)]


def read_samplers(value: object) -> tuple[str, ...]:
    """Return sampler names from a list of names or, as in llama-server, a string of letters."""
    if isinstance(value, str):
        found = [(letter, SAMPLER_LETTERS.get(letter)) for letter in value if letter not in GONE_SAMPLERS]
    elif isinstance(value, list):
        names = [name for name in value if name not in GONE_SAMPLERS]
        found = [(name, sampler_named(name) if isinstance(name, str) else None) for name in names]
    else:
        raise ValueError("must be a list of sampler names or a string of sampler letters")
    if len(found) > MAX_SAMPLERS:
        raise ValueError(f"must have at most {MAX_SAMPLERS} entries")
    for name, sampler in found:
        if sampler is None:
            known = ", ".join(f"{letter} ({full})" for full, letter in SAMPLERS.items())
            raise ValueError(f"unknown sampler {short_json(name)}; known: {known}")
    return tuple(sampler for _, sampler in found if sampler is not None)


def _body_type(name: str, kind: type, parameter: Parameter) -> Any:
    """Return the type of a parameter's field in bodies."""
    if name == "repeat_penalty":
        return RepeatPenalty
    if parameter.hard is not None:
        return Annotated[Whole if kind is int else kind, AfterValidator(within(*parameter.hard))]
    number: Any = {int: Whole, float: Number}.get(kind, kind)
    return number if parameter.soft is None else Annotated[number, AfterValidator(clamped(*parameter.soft))]


if TYPE_CHECKING:

    class _Parameters(Body):
        temperature: float | None = None
        top_k: int | None = None
        top_p: float | None = None

else:
    _Parameters = create_model(
        "_Parameters",
        __base__=Body,
        **{name: (_body_type(name, *known) | None, None) for name, known in PARAMETERS.items()},
    )


class SamplingFields(_Parameters):
    """Every field of `SamplingParams` under llama-server's name; absent = the model's default."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "dry_sequence_breakers": "Error: dry_sequence_breakers must be a non-empty array of strings"
    }
    seed: Seed | None = None
    dry_sequence_breakers: Breakers | None = None
    samplers: Annotated[TextOrStrings, AfterValidator(read_samplers)] = None
    logit_bias: Annotated[Any, AfterValidator(read_logit_bias), WithJsonSchema(_BIAS_SCHEMA)] = None


_NAMES = tuple(each.name for each in dataclasses.fields(SamplingParams))
_SIZES = ("top_k", "min_keep", "repeat_last_n", "dry_penalty_last_n", "dry_allowed_length")


def sampling_params(fields: SamplingFields, defaults: SamplingParams, vocab: Vocab, n_ctx: int) -> SamplingParams:
    """Return the model's `defaults`, overridden by the request's fields.

    Sizes for which the native library allocates memory (windows, k) are limited to the context and the vocabulary,
    beyond which they have no effect. Raises `InvalidRequest` if the bias bans all tokens.
    """
    given: dict[str, Any] = {name: value for name in _NAMES if (value := getattr(fields, name)) is not None}
    if fields.seed is not None:
        given["seed"] = fields.seed & 0xFFFFFFFF  # -1 becomes RANDOM_SEED, as in C
    if given.get("dry_base", 1) < 1:  # the default applies, as in llama-server
        del given["dry_base"]
    if fields.logit_bias is not None:
        given["logit_bias"] = token_biases(fields.logit_bias, vocab)
        banned = {token for token, bias in given["logit_bias"] if bias == NEVER}
        if len(banned) >= vocab.n_tokens:
            raise field_error("logit_bias", "bans every token of the vocabulary")
    sizes = {name: given.get(name, getattr(defaults, name)) for name in _SIZES}
    given |= {
        "top_k": min(max(sizes["top_k"], 0), vocab.n_tokens),
        "min_keep": min(sizes["min_keep"], vocab.n_tokens),
        "repeat_last_n": _window(sizes["repeat_last_n"], n_ctx),
        "dry_penalty_last_n": _window(sizes["dry_penalty_last_n"], n_ctx),
        "dry_allowed_length": min(sizes["dry_allowed_length"], n_ctx),
    }
    return dataclasses.replace(defaults, **given)


def _window(n: int, n_ctx: int) -> int:
    """Return the size of a window over the last tokens, where -1 means the whole context."""
    return n_ctx if n < 0 else min(n, n_ctx)
