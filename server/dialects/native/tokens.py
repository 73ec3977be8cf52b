"""``/tokenize`` and ``/detokenize`` (llama.cpp tools/server/server-context.cpp, post_tokenize)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.chat.conversation import Media
from server.dialects.common import Json
from server.dialects.completions.prompt import (
    GivenPrompt,
    check_token,
    prompt_media,
    read_mixed,
    read_object,
    read_prompt,
)
from server.dialects.fields import Body, Prompt, parse
from server.dialects.warnings import unused_fields
from server.media.source import NOTHING_SEEN, Seen
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
class _TokensRequest:
    """A checked body. ``salt``: `server.dialects.dialect.ModelRequest`."""

    model: str | None
    warnings: Sequence[str]
    salt = None


@dataclass(frozen=True, slots=True)
class Tokenize(_TokensRequest):
    """A checked body of ``/tokenize``. ``path``: the field with the content, "" for no content."""

    content: GivenPrompt
    path: str
    add_special: bool
    parse_special: bool
    with_pieces: bool

    @property
    def media(self) -> tuple[Media, ...]:
        """Those of a content with ``multimodal_data``."""
        return prompt_media([self.content])


@dataclass(frozen=True, slots=True)
class Detokenize(_TokensRequest):
    """A checked body of ``/detokenize``."""

    tokens: list[int]


def read_tokenize(received: dict[str, Any]) -> Tokenize:
    """Check the body. Raises `InvalidRequest`."""
    body = parse(TokenizeBody, received)
    named = body.content is None and body.prompt is not None
    given = body.prompt if named else body.content
    path = "prompt" if named else "content"
    content = read_object(given, path) if isinstance(given, dict) else read_mixed("" if given is None else given, path)
    wanted = (one for one in (body.add_special, body.add_special_tokens) if one is not None)
    return Tokenize(
        body.model,
        unused_fields(received, TokenizeBody),
        content,
        "" if given is None else path,
        next(wanted, named),
        body.parse_special,
        body.with_pieces,
    )


def tokenize(request: Tokenize, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """``{"tokens": [id, ...]}``, or ``[{"id", "piece"}, ...]`` with pieces: text, or bytes where it is not UTF-8.

    Many are JSON already (`orjson.Fragment`).
    """
    if not request.path:
        return {"tokens": []}
    read = read_prompt(
        *(request.content, model, seen, request.path),
        add_special=request.add_special,
        parse_special=request.parse_special,
    )
    tokens, vocab = [max(token, _MEDIUM) for token in read.tokens] if read.spans else read.tokens, model.vocab
    if len(tokens) > _SLICE:
        return {"tokens": orjson.Fragment(_written(tokens, vocab if request.with_pieces else None))}
    return {"tokens": _shown(tokens, vocab) if request.with_pieces else tokens}


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


def read_detokenize(given: dict[str, Any]) -> Detokenize:
    """Check the body. Raises `InvalidRequest`."""
    body = parse(DetokenizeBody, given)
    return Detokenize(body.model, unused_fields(given, DetokenizeBody), body.tokens or [])


def detokenize(request: Detokenize, vocab: Vocab) -> Json:
    """``{"content": text}``; bytes that are not UTF-8 become U+FFFD. Raises `InvalidRequest` for a foreign id."""
    for index, token in enumerate(request.tokens):
        check_token(vocab, token, f"tokens.{index}")
    return {"content": vocab.detokenize(request.tokens).decode("utf-8", "replace")}
