"""Parts of replies that several dialects share, with llama-server's fields."""

import math
import secrets
import string
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from server import __version__
from server.engine.request import FinishReason, Progress, Timings, TokenLogprob

LLAMA_CPP = "b11312-0c1e57098"
"""The build and the commit of llama.cpp in llama-cpp-python 0.3.36, in llama-server's format."""
FINGERPRINT = f"{LLAMA_CPP}-llamapool-{__version__}"
DONE = b"data: [DONE]\n\n"
_ALPHABET = (string.digits + string.ascii_letters).encode()
_TO_ALPHABET = bytes(_ALPHABET[i % len(_ALPHABET)] for i in range(256))
_LOWEST_FLOAT = -3.4028234663852886e38  # llama-server's value for log 0, because JSON has no -inf

Json = dict[str, Any]


def random_id() -> str:
    """Return 32 random letters and digits (llama.cpp tools/server/server-common.cpp, random_string)."""
    return secrets.token_bytes(32).translate(_TO_ALPHABET).decode("ascii")


@dataclass(frozen=True, slots=True)
class Header:
    """The fields that every chunk and response of one request repeats."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{random_id()}")
    created: int = field(default_factory=lambda: int(time.time()))


def finish_reason(reason: FinishReason, *, called: bool = False) -> str:
    """Return OpenAI's ``finish_reason``. `called`: the choice has tool calls."""
    if reason is FinishReason.LIMIT:
        return "length"
    return "tool_calls" if called else "stop"


def timings(t: Timings) -> Json:
    """Return llama-server's ``timings``. The first token counts as prompt time, so speeds are over n - 1 steps."""
    steps = max(t.predicted_n - 1, 0)
    drafts = {"draft_n": t.draft_n, "draft_n_accepted": t.draft_n_accepted} if t.draft_n else {}
    return {
        "cache_n": t.cache_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": _ratio(t.prompt_ms, t.prompt_n),
        "prompt_per_second": _ratio(1e3 * t.prompt_n, t.prompt_ms),
        "predicted_n": t.predicted_n,
        "predicted_ms": t.predicted_ms,
        "predicted_per_token_ms": _ratio(t.predicted_ms, steps),
        "predicted_per_second": _ratio(1e3 * steps, t.predicted_ms),
        **drafts,
    }


def timed(t: Timings | None) -> Json:
    """Return the member ``timings`` of a chunk if the client requested them for each token."""
    return {"timings": timings(t)} if t else {}


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0


def progress(p: Progress) -> Json:
    """Return llama-server's ``prompt_progress`` with its timings. Cached tokens count as processed."""
    return {
        "timings": timings(Timings(cache_n=p.cached, prompt_n=p.computed - p.cached, prompt_ms=p.elapsed_ms)),
        "prompt_progress": {
            "total": p.total,
            "cache": p.cached,
            "processed": p.computed,
            "time_ms": int(p.elapsed_ms),
        },
    }


def logprobs(tokens: Iterable[TokenLogprob], *, after_sampling: bool = False) -> Json:
    """Return ``logprobs`` of a choice or a chunk (llama.cpp server-task.cpp, completion_token_output)."""
    return {"content": probabilities(tokens, after_sampling=after_sampling)}


def probabilities(tokens: Iterable[TokenLogprob], *, after_sampling: bool = False) -> list[Json]:
    """Return an entry per token: its log probability and the top ones, or plain probabilities if `after_sampling`.

    Probabilities of 0 are excluded, because the samplers removed these tokens.
    """
    if after_sampling:
        return [
            {**_prob(t), "top_probs": [_prob(alternative) for alternative in t.top if alternative.logprob > -math.inf]}
            for t in tokens
        ]
    return [
        {**_logprob(t), "top_logprobs": [_logprob(alternative) for alternative in t.top], **_mask(t)} for t in tokens
    ]


def _mask(token: TokenLogprob) -> Json:
    """Return the tokens that a constraint masked at this position, if the request has ``n_forbidden``."""
    if token.mask is None:
        return {}
    n_allowed, forbidden = token.mask
    return {"mask": {"n_allowed": n_allowed, "forbidden": [_logprob(one) for one in forbidden]}}


def _logprob(token: TokenLogprob) -> Json:
    return {**_token(token), "logprob": max(token.logprob, _LOWEST_FLOAT)}


def _prob(token: TokenLogprob) -> Json:
    return {**_token(token), "prob": math.exp(token.logprob)}


def _token(token: TokenLogprob) -> Json:
    return {"id": token.id, "token": shown_piece(token.piece), "bytes": list(token.piece)}


def shown_piece(piece: bytes) -> str:
    """Decode a token's bytes. An incomplete character at the end is dropped; other invalid bytes become U+FFFD.

    As in llama-server, the lead byte alone decides which character is incomplete (server-common.cpp, validate_utf8).
    """
    for n in range(1, min(4, len(piece)) + 1):
        lead = piece[-n]
        n_bytes = 2 if lead >> 5 == 0b110 else 3 if lead >> 4 == 0b1110 else 4 if lead >> 3 == 0b11110 else 0
        if n < n_bytes:
            return piece[:-n].decode("utf-8", "replace")
    return piece.decode("utf-8", "replace")


def rfc3339(seconds: float) -> str:
    """Return Unix seconds as a UTC time such as ``2026-11-24T00:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def page_of(data: Sequence[Json], *, has_more: bool) -> Json:
    """Return one page of a list: the objects, and the ids of the first and the last."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": has_more, "first_id": first, "last_id": last}


def event(body: Json) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def typed_event(body: Json) -> bytes:
    """Return one server-sent event that is named by its ``type``, as in Anthropic's streams."""
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), orjson.dumps(body))


def extended(event: bytes, more: Json) -> bytes:
    """Append the members `more` to the object of a server-sent event."""
    return event.removesuffix(b"}\n\n") + b"," + orjson.dumps(more)[1:] + b"\n\n" if more else event
