"""OpenAI's ``logprobs`` of completions: four lists with an entry for each token.

``tokens``, ``token_logprobs``, ``top_logprobs`` (text to log probability) and ``text_offset``, in characters of the
choice's text. With ``echo``, the prompt's tokens come first; the first one and those of media have no probability.
lm-evaluation-harness and others score texts with these lists. llama-server's ``content`` is also included. Unlike
llama-server's, the lists include the end token, as at OpenAI: a client that requests one token finds one.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from server.dialects.common import Json
from server.engine.media import MediaPrompt
from server.engine.request import TokenLogprob
from server.vocab import Vocab

_MAYBE_ADDED = 2  # tokens at the prompt's start that its text may lack


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt at the start of a choice's text.

    ``pieces``: the prompt's tokens if their log probabilities are requested. The first token of a media part, or a
    slice of one, is its ``marker``, and the others are empty.
    """

    text: str = ""
    pieces: tuple[bytes, ...] = ()
    marker: bytes = b""


class PromptLists:
    """The lists of an echoed prompt. They grow with the prompt's log probabilities, step by step for a long prompt."""

    def __init__(self, echo: Echo) -> None:
        self._pieces, self._marker = echo.pieces, echo.marker
        self._encoded = echo.text.encode("utf-8", "replace")
        self._at = 0  # the bytes of the text that tokens have taken
        self._n_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lists: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if echo.pieces:
            self._add(echo.pieces[0], None)

    @property
    def wanted(self) -> bool:
        """Whether there are any."""
        return bool(self._pieces)

    @property
    def complete(self) -> bool:
        """Whether every token is there."""
        return len(self._lists["tokens"]) == len(self._pieces)

    def add(self, scores: Sequence[TokenLogprob | None]) -> None:
        """The log probabilities of the next tokens; the first one has none, and no medium's."""
        start = len(self._lists["tokens"])
        for piece, score in zip(self._pieces[start : start + len(scores)], scores, strict=True):
            self._add(piece, score)

    def followed_by(self, lists: Json | None = None) -> Json:
        """Return the prompt's lists followed by the choice's."""
        if lists is None:
            return self._lists
        return {name: values + lists[name] for name, values in self._lists.items()} if self._pieces else lists

    def _add(self, piece: bytes, score: TokenLogprob | None) -> None:
        text = "" if piece == self._marker else _shown(piece)
        lists = self._lists
        lists["tokens"].append(text)
        lists["token_logprobs"].append(None if score is None else score.logprob)
        lists["top_logprobs"].append(None if score is None else _top(text, score))
        lists["text_offset"].append(self._n_chars)
        taken = self._encoded[self._at : self._at + self._length(piece)]
        self._at += len(taken)
        self._n_chars += len(self._decoder.decode(taken))

    def _length(self, piece: bytes) -> int:
        """Return how many bytes of the text belong to this token. The text lacks what the vocabulary adds (a first
        token, a space) and the frames of a video.
        """
        is_sure = len(self._lists["tokens"]) > _MAYBE_ADDED and not self._marker
        if is_sure or self._encoded.startswith(piece, self._at):
            return len(piece)
        bare = piece.removeprefix(b" ")
        return len(bare) if self._encoded.startswith(bare, self._at) else 0


def echo(vocab: Vocab, text: str, prompt: MediaPrompt, marker: str = "") -> Echo:
    """Of a prompt whose tokens' log probabilities are shown; its `text` has a `marker` for each medium."""
    starts, encoded = {span.start for span in prompt.spans}, marker.encode()
    pieces = (
        vocab.piece(token) if token >= 0 else encoded if at in starts else b"" for at, token in enumerate(prompt.tokens)
    )
    return Echo(text, tuple(pieces), encoded)


class TokenLists:
    """The lists of one choice's generated tokens, in parts; ``offset``: where its first token's text begins."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Sequence[TokenLogprob]) -> Json:
        """Of the next tokens."""
        texts = [_shown(token.piece) for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.piece))
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": list(map(_top, texts, tokens)),
            "text_offset": offsets,
        }


def _shown(piece: bytes) -> str:
    """As at OpenAI, whose tokens that are no whole characters are ``bytes:\\xe2\\x80``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _top(text: str, token: TokenLogprob) -> dict[str, float]:
    """Return the top tokens, best first, and `token` itself, whose text is `text`. Among equal texts, keep the most
    likely.
    """
    top: dict[str, float] = {}
    for alternative in token.top:
        top.setdefault(_shown(alternative.piece), alternative.logprob)
    top.setdefault(text, token.logprob)
    return top
