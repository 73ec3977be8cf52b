"""``logit_bias`` in every form that llama-server takes (tools/server/server-schema.cpp, "logit_bias").

An object ``{"15": 1.5, " Hello": false}`` or a list of pairs ``[[15, 1.5], [" Hello", false]]``: a key is a token
id or a text whose tokens are all meant; ``false`` means never. llama-server drops pairs that it can't read and
ids past the vocabulary; here they are errors.
"""

import math
from collections.abc import Iterable, Sequence

from server.dialects.fields import field_error
from server.engine.request import Request
from server.vocab import Vocab

Biases = tuple[tuple[int | str, float], ...]
MAX_ENTRIES = 65536
MAX_BATCH = 4 * MAX_ENTRIES
"""Maximum for all choices of all prompts of one body: each has its own copy in the native library and in llama-server's
``generation_settings``.
"""
_LIMIT = 1e30
NEVER = -math.inf


def read_logit_bias(value: object) -> Biases:
    """Return (token id or text, bias) pairs. Raises ValueError with the reason."""
    if isinstance(value, dict):
        pairs: list[object] = [[_key(key), bias] for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise ValueError("must be an object of token to bias or a list of [token, bias] pairs")
    if len(pairs) > MAX_ENTRIES:
        raise ValueError(f"must have at most {MAX_ENTRIES} entries")
    return tuple(_pair(index, pair) for index, pair in enumerate(pairs))


def _key(key: str) -> int | str:
    """An object's key: digits are a token id."""
    return int(key) if key.isascii() and key.removeprefix("-").isdecimal() and len(key) < 12 else key


def _pair(index: int, pair: object) -> tuple[int | str, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"entry {index} must be a [token, bias] pair")
    token, bias = pair
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise ValueError(f"entry {index}: the token must be an id or a text")
    if bias is False:
        return token, NEVER
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise ValueError(f"entry {index}: the bias must be a number or false")
    if not abs(bias) <= _LIMIT:
        raise ValueError(f"entry {index}: the bias must be within -{_LIMIT:g} and {_LIMIT:g}")
    return token, float(bias)


def token_biases(bias: Biases, vocab: Vocab) -> tuple[tuple[int, float], ...]:
    """Tokenize the texts.

    Raises `InvalidRequest` for an id outside of the vocabulary, and for too many entries: each costs the step thread
    time, which delays other requests.
    """
    found: list[tuple[int, float]] = []
    for token, value in bias:
        if isinstance(token, str):
            found += ((t, value) for t in vocab.tokenize(token, add_special=False, parse_special=False))
            if len(found) > MAX_ENTRIES:
                raise field_error("logit_bias", f"comes to more than {MAX_ENTRIES} tokens")
        elif 0 <= token < vocab.n_tokens:
            found.append((token, value))
        else:
            raise field_error(
                "logit_bias", f"token id {token} is outside of the vocabulary (0 to {vocab.n_tokens - 1})"
            )
    return tuple(found)


def check_together(requests: Iterable[Request]) -> None:
    """Raises `InvalidRequest` where the requests of one body have too many biases together."""
    n = sum(len(request.sampling.logit_bias) * request.n for request in requests)
    if n > MAX_BATCH:
        raise field_error("logit_bias", f"comes to {n} tokens for all prompts and choices; at most {MAX_BATCH}")


def banned_everything(bias: Sequence[tuple[int, float]], n_tokens: int) -> bool:
    """Whether no token of the vocabulary is left."""
    return len(bias) >= n_tokens and len({token for token, value in bias if value == NEVER}) >= n_tokens
