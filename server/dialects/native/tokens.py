"""``/tokenize`` and ``/detokenize`` (llama.cpp tools/server/server-context.cpp, post_tokenize)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.dialects.common import Json
from server.dialects.completions.prompt import check_token, prompt_media, read_mixed, read_object
from server.dialects.fields import Body, Prompt, parse
from server.dialects.warnings import unused_fields
from server.media.source import LoadedMedia, Media
from server.pool.model import LoadedModel
from server.vocab import Vocab

_MEDIUM = -1
"""The id of each token of a media part: llama.cpp's value for no token (LLAMA_TOKEN_NULL)."""
_SLICE = 16384  # tokens that are serialized or freed at a time, because other threads wait meanwhile


class TokenizeBody(Body):
    """The body of ``POST /tokenize``.

    Without content the reply has no tokens, as in llama-server. ``prompt`` and ``add_special_tokens`` are vLLM's names.
    With ``prompt``, BOS and EOS are added by default.
    """

    model: str | None = None
    content: Prompt = None
    prompt: Prompt = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[int] | None = None


@dataclass(frozen=True, slots=True)
class TokensRequest:
    """A parsed body. ``work`` creates the reply with a model and loaded media. There is no cache ``salt``."""

    model: str | None
    warnings: Sequence[str]
    work: Callable[[LoadedModel, LoadedMedia], Json]
    media: Sequence[Media] = ()
    salt = None


def read_tokenize(received: dict[str, Any]) -> TokensRequest:
    """Parse the body of ``/tokenize``. Raises `InvalidRequest`.

    The reply is ``{"tokens": [id, ...]}``, or ``[{"id", "piece"}, ...]`` with pieces. A piece is a string, or a list of
    bytes if it is not UTF-8. Long lists are serialized already (`orjson.Fragment`).
    """
    body = parse(TokenizeBody, received)
    path = "prompt" if body.content is None and body.prompt is not None else "content"
    given = body.prompt if body.content is None else body.content
    content = read_object(given, path) if isinstance(given, dict) else read_mixed("" if given is None else given, path)
    flags = (flag for flag in (body.add_special, body.add_special_tokens) if flag is not None)
    add_special = next(flags, path == "prompt")

    def tokenize(model: LoadedModel, media: LoadedMedia) -> Json:
        if given is None:
            return {"tokens": []}
        prompt = content.read(model, media, add_special=add_special, parse_special=body.parse_special)
        tokens, vocab = [max(token, _MEDIUM) for token in prompt.tokens] if prompt.spans else prompt.tokens, model.vocab
        if len(tokens) > _SLICE:
            return {"tokens": orjson.Fragment(_serialized(tokens, vocab if body.with_pieces else None))}
        return {"tokens": _with_pieces(tokens, vocab) if body.with_pieces else tokens}

    return TokensRequest(body.model, unused_fields(received, TokenizeBody), tokenize, prompt_media([content]))


def read_detokenize(given: dict[str, Any]) -> TokensRequest:
    """Parse the body of ``/detokenize``. Invalid UTF-8 becomes U+FFFD. Raises `InvalidRequest`."""
    body = parse(DetokenizeBody, given)
    tokens = body.tokens or []

    def detokenize(model: LoadedModel, _: LoadedMedia) -> Json:
        for index, token in enumerate(tokens):
            check_token(model.vocab, token, f"tokens.{index}")
        return {"content": model.vocab.detokenize(tokens).decode("utf-8", "replace")}

    return TokensRequest(body.model, unused_fields(given, DetokenizeBody), detokenize)


def _with_pieces(tokens: list[int], vocab: Vocab) -> list[Json]:
    return [{"id": token, "piece": _piece(vocab.piece(token)) if token >= 0 else ""} for token in tokens]


def _serialized(tokens: list[int], vocab: Vocab | None) -> bytes:
    """Serialize the tokens, with their pieces if `vocab` is not None. Empties the list."""
    parts = [b"["]
    tokens.reverse()
    while tokens:
        part = tokens[: -_SLICE - 1 : -1]
        del tokens[-_SLICE:]
        written = orjson.dumps(part if vocab is None else _with_pieces(part, vocab))
        parts += (written[1:-1], b"," if tokens else b"]")
    return b"".join(parts)


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
