"""The model's vocabulary for llguidance: the bytes of every token, special tokens, and tokens that end the output."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import llguidance

from server.errors import InvalidRequest
from server.vocab import Vocab

MAX_TOKEN_BYTES = 1024
_SHORT_TEXT = r'[^"\\\x00-\x1F\x7F]{1,16}'
"""The slice of tokens that llguidance prepares for the inside of strings.

Its default of four slices takes 18 MB instead of 10 MB for 49,000 tokens, and most masks are not faster.
"""


class _Encoder:
    """The argument of `llguidance.TokenizerWrapper`: the vocabulary, and a function that encodes forced text.

    llguidance then only allows the first of these tokens, so the tokens must spell the text exactly. The greedy longest
    match does; a model's own tokenizer may add a leading space.
    """

    def __init__(self, table: "TokenTable") -> None:
        self.tokens: Sequence[bytes] = list(table.tokens)
        self.special_token_ids = [*table.special, *table.ends]
        self.bos_token_id = table.bos if table.bos >= 0 else None
        self.eos_token_id = table.ends[0]
        self.greedy: llguidance.LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text is str")  # llguidance probes with bytes first
        return [] if self.greedy is None else self.greedy.greedy_tokenize(text)


class Tokenizer:
    """llguidance's tokenizer of one vocabulary. Creating it takes about 0.7 s for 150,000 tokens.

    ``native``: llguidance's object, which calls an encoder that refers to it. Python's garbage collector does not see
    this cycle through Rust, so finalizing the `Tokenizer` breaks it. ``native`` must not be used after that.
    """

    def __init__(self, table: "TokenTable") -> None:
        self.n_tokens, self.ends = table.n_tokens, frozenset(table.ends)
        encoder = _Encoder(table)
        wrapper = llguidance.TokenizerWrapper(encoder)
        self.native = llguidance.LLTokenizer(wrapper, eos_token=list(table.ends), slices=[_SHORT_TEXT])
        wrapper.tokens = encoder.tokens = ()  # llguidance has copies
        encoder.greedy = self.native
        weakref.finalize(self, setattr, encoder, "greedy", None).atexit = False


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A vocabulary for llguidance as plain values that can be sent to another process."""

    n_tokens: int  # of the model
    tokens: tuple[bytes, ...]
    special: tuple[int, ...]  # ids that text never matches, besides ``ends``
    bos: int
    ends: tuple[int, ...]  # ids that end the output

    @classmethod
    def of(cls, vocab: Vocab) -> "TokenTable":
        """Read `vocab`. Raises `InvalidRequest` for a vocabulary that llguidance does not support.

        A vocabulary without an end token gets a virtual one after its last token, so that a finished constraint allows
        nothing.
        """
        tokens = [vocab.piece(token, special=True) for token in range(vocab.n_tokens)]
        ends = [*([vocab.eos] if vocab.eos >= 0 else []), *sorted(vocab.eog - {vocab.eos})]
        if not ends:
            ends = [vocab.n_tokens]
            tokens.append(b"")
        longest = max(map(len, tokens))
        if longest > MAX_TOKEN_BYTES:  # llguidance panics
            raise InvalidRequest(
                f"constrained decoding is not possible with this model: its vocabulary has a token of {longest} bytes"
            )
        special = [
            token
            for token, piece in enumerate(tokens)
            if piece and token not in ends and not vocab.piece(token, special=False)
        ]
        return cls(vocab.n_tokens, tuple(tokens), tuple(special), vocab.bos, tuple(ends))

    def token_id(self, text: str) -> int | None:
        """Return the token whose whole text is `text`, None for none. A special token takes precedence."""
        piece = text.encode("utf-8", "surrogatepass")
        special = (token for token in sorted((*self.special, *self.ends)) if self.tokens[token] == piece)
        return next(special, self.tokens.index(piece) if piece in self.tokens else None)
