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
_SLICE = 16384  # tokens written as JSON, or freed, at a time: other threads wait meanwhile


class TokenizeBody(Body):
    """The body of ``POST /tokenize``.

    Without content there are no tokens, as in llama-server. ``prompt`` and ``add_special_tokens`` are vLLM's names,
    with its default of adding BOS and EOS.
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
    """A checked body. ``work`` makes the reply with a model and the request's media. It names no cache namespace."""

    model: str | None
    warnings: Sequence[str]
    work: Callable[[LoadedModel, LoadedMedia], Json]
    media: Sequence[Media] = ()
    salt = None


def read_tokenize(received: dict[str, Any]) -> TokensRequest:
    """Check the body of ``/tokenize``. Raises `InvalidRequest`.

    The reply is ``{"tokens": [id, ...]}``, or ``[{"id", "piece"}, ...]`` with pieces: text, or bytes if it is not
    UTF-8. Many are JSON already (`orjson.Fragment`).
    """
    body = parse(TokenizeBody, received)
    path = "prompt" if body.content is None and body.prompt is not None else "content"
    given = body.prompt if body.content is None else body.content
    content = read_object(given, path) if isinstance(given, dict) else read_mixed("" if given is None else given, path)
    wanted = (one for one in (body.add_special, body.add_special_tokens) if one is not None)
    add_special = next(wanted, path == "prompt")

    def tokenize(model: LoadedModel, media: LoadedMedia) -> Json:
        if given is None:
            return {"tokens": []}
        read = content.read(model, media, add_special=add_special, parse_special=body.parse_special)
        tokens, vocab = [max(token, _MEDIUM) for token in read.tokens] if read.spans else read.tokens, model.vocab
        if len(tokens) > _SLICE:
            return {"tokens": orjson.Fragment(_written(tokens, vocab if body.with_pieces else None))}
        return {"tokens": _shown(tokens, vocab) if body.with_pieces else tokens}

    return TokensRequest(body.model, unused_fields(received, TokenizeBody), tokenize, prompt_media([content]))


def read_detokenize(given: dict[str, Any]) -> TokensRequest:
    """Check the body of ``/detokenize``. Bytes that are not UTF-8 become U+FFFD. Raises `InvalidRequest`."""
    body = parse(DetokenizeBody, given)
    tokens = body.tokens or []

    def detokenize(model: LoadedModel, _: LoadedMedia) -> Json:
        for index, token in enumerate(tokens):
            check_token(model.vocab, token, f"tokens.{index}")
        return {"content": model.vocab.detokenize(tokens).decode("utf-8", "replace")}

    return TokensRequest(body.model, unused_fields(given, DetokenizeBody), detokenize)


def _shown(tokens: list[int], vocab: Vocab) -> list[Json]:
    return [{"id": token, "piece": _piece(vocab.piece(token)) if token >= 0 else ""} for token in tokens]


def _written(tokens: list[int], vocab: Vocab | None) -> bytes:
    """Serialize the tokens, with their pieces if there is a vocabulary. Empties the list."""
    parts = [b"["]
    tokens.reverse()
    while tokens:
        part = tokens[: -_SLICE - 1 : -1]
        del tokens[-_SLICE:]
        written = orjson.dumps(part if vocab is None else _shown(part, vocab))
        parts += (written[1:-1], b"," if tokens else b"]")
    return b"".join(parts)


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
