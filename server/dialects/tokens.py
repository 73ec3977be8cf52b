"""``/tokenize`` and ``/detokenize`` (llama.cpp tools/server/server-context.cpp, post_tokenize)."""

from dataclasses import dataclass
from typing import Any

from server.dialects.completion_prompt import Prompt, check_token, read_mixed, tokenize_mixed
from server.dialects.fields import Body, parse, wrong_type
from server.dialects.wire import Json
from server.engine.protocols import Vocab


class TokenizeBody(Body):
    """The body of ``POST /tokenize``. Without content there are no tokens, as in llama-server."""

    model: str | None = None
    content: Any = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: Any = None


@dataclass(frozen=True, slots=True)
class Tokenize:
    """A checked body of ``/tokenize``."""

    body: TokenizeBody
    content: Prompt


@dataclass(frozen=True, slots=True)
class Detokenize:
    """A checked body of ``/detokenize``."""

    body: DetokenizeBody
    tokens: list[int]


def read_tokenize(given: object) -> Tokenize:
    """Check the body. Raises `InvalidRequest`."""
    body = parse(TokenizeBody, given)
    return Tokenize(body, read_mixed("" if body.content is None else body.content, "content"))


def tokenize(request: Tokenize, vocab: Vocab) -> Json:
    """``{"tokens": [id, ...]}``, or ``[{"id", "piece"}, ...]`` with pieces: text, or bytes where it is not UTF-8."""
    body = request.body
    if body.content is None:
        return {"tokens": []}
    tokens = tokenize_mixed(
        vocab, request.content, "content", add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(vocab.piece(token))} for token in tokens]}


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def read_detokenize(given: object) -> Detokenize:
    """Check the body. Raises `InvalidRequest`."""
    body = parse(DetokenizeBody, given)
    tokens = [] if body.tokens is None else body.tokens
    if not isinstance(tokens, list):
        raise wrong_type("tokens", "a list of token ids", tokens)
    for index, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type(f"tokens.{index}", "a token id", token)
    return Detokenize(body, tokens)


def detokenize(request: Detokenize, vocab: Vocab) -> Json:
    """``{"content": text}``; bytes that are not UTF-8 become U+FFFD. Raises `InvalidRequest` for a foreign id."""
    for index, token in enumerate(request.tokens):
        check_token(vocab, token, f"tokens.{index}")
    return {"content": vocab.detokenize(request.tokens).decode("utf-8", "replace")}
