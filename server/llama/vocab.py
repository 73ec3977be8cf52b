"""A model's vocabulary: tokenizing, pieces, special tokens.

A long text is split after special tokens, so that tokenizing takes linear time: for every special token llama.cpp
walks the list of fragments from its start (src/llama-vocab.cpp, tokenizer_st_partition); 400 kB of ``<|im_end|>x``
take 44 s, 4 MB over an hour. The tokens of a text that ends in a special token do not depend on what follows.
What follows is tokenized as after a start without BOS. So the parts can be tokenized one by one.
"""

import contextlib
import ctypes
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import compress, repeat

from server.errors import InternalError, InvalidRequest
from server.llama.library import C, fast

MIN_PIECE_BYTES = 256  # the time of a piece grows with its square
_WINDOW_BYTES = 4096  # `re` holds the GIL for one window at a time


class SpecialTexts:
    """The special texts of one vocabulary, which the tokenizer matches before anything else."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._longest = len(self.texts[0]) if self.texts else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self.texts)))
        # the special texts that can overlap one, including itself if it can
        self._rivals = cache(lambda text: tuple(other for other in self.texts if _can_overlap(text, other)))

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """`raw` in pieces, each but the last one ending in a special text that is certainly taken as a token."""
        start = 0
        while self.texts and (end := self._cut(raw, start + MIN_PIECE_BYTES)):
            yield raw[start:end]
            start = end
        yield raw[start:]

    def left_out(self, raw: bytes) -> bytes:
        """Return `raw` without special texts."""
        return self._pattern.sub(b"", raw)

    def _cut(self, raw: bytes, at: int) -> int:
        """Return the end of the first special text at or after `at` that no other one overlaps; 0 = none."""
        while at < len(raw):
            window_end = at + _WINDOW_BYTES
            match = self._pattern.search(raw, at, window_end + self._longest)
            if match is None:
                at = window_end
            elif self._alone(raw, match.start(), match[0]):
                return match.end()
            else:
                at = match.start() + 1
        return 0

    def _alone(self, raw: bytes, at: int, text: bytes) -> bool:
        """Return whether no other special text overlaps the one at `at`: the longer, then the left one would win."""
        for other in self._rivals(text):
            first = max(0, at - len(other) + 1)
            found = raw.find(other, first, at + len(text) + len(other) - 1)
            if found == at and other == text:
                found = raw.find(other, at + 1, at + len(text) + len(other) - 1)
            if found >= 0:
                return False
        return True


def _can_overlap(one: bytes, other: bytes) -> bool:
    if one != other and (one in other or other in one):
        return True
    sizes = range(1, min(len(one), len(other)))
    return any(one.endswith(other[:n]) or other.endswith(one[:n]) for n in sizes)


_MAX_BYTES = (1 << 31) - 1
_PIECE_BYTES = 64
_SLICE = 16384  # tokens made into Python's numbers at a time; the interpreter is kept from other threads meanwhile
_SHORT_BYTES = 256  # up to here, tokenizing takes microseconds with most vocabularies
_QUICK_S = 1e-3
_LEAST_BYTES = 4  # of a text in a JSON array
_LONG_BYTES = 4096  # from here on, special tokens in the text split it
_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4  # enum llama_token_attr
_TURN_ENDS = ("<|end|>", "[/INST]", "<\uff5cAssistant\uff5c>")
_NOT_PRINTED = _UNKNOWN | _CONTROL  # llama_vocab::impl::token_to_piece
_SENTENCEPIECE = 1  # enum llama_vocab_type
_UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))
_SPECIAL = _USER_DEFINED | _NOT_PRINTED


class LlamaVocab:
    """`server.engine.runner_api.Vocab` over a loaded model. Ids are -1 for tokens the model does not have. Thread-safe
    until the weights are closed. ``unspelled``: bytes for which a SentencePiece vocabulary has no token. The library
    ends the process at a character that needs one (src/llama-vocab.cpp, byte_to_token).
    """

    def __init__(self, model: int) -> None:
        pointer = C.llama_model_get_vocab(model)
        self._pointer: int | None = pointer
        self.type: int = C.llama_vocab_type(pointer)
        self.n_tokens: int = C.llama_vocab_n_tokens(pointer)
        self.bos: int = C.llama_vocab_bos(pointer)
        self.eos: int = C.llama_vocab_eos(pointer)
        self.eot: int = C.llama_vocab_eot(pointer)
        self.sep: int = C.llama_vocab_sep(pointer)
        self.add_bos: bool = C.llama_vocab_get_add_bos(pointer)
        self.add_eos: bool = C.llama_vocab_get_add_eos(pointer)
        self.add_sep: bool = C.llama_vocab_get_add_sep(pointer)
        self.fim_prefix: int = C.llama_vocab_fim_pre(pointer)
        self.fim_suffix: int = C.llama_vocab_fim_suf(pointer)
        self.fim_middle: int = C.llama_vocab_fim_mid(pointer)
        self.fim_repo: int = C.llama_vocab_fim_rep(pointer)
        self.fim_sep: int = C.llama_vocab_fim_sep(pointer)
        every = range(self.n_tokens)  # 150,000 are common: no Python code for each
        self.eog: frozenset[int] = frozenset(compress(every, map(fast.vocab_is_eog, repeat(pointer), every)))
        self.suppressed: tuple[int, ...] = _suppressed(pointer)
        special = [
            (t, bits) for t, bits in enumerate(map(fast.vocab_get_attr, repeat(pointer), every)) if bits & _SPECIAL
        ]
        self._always_special = self._special_texts(t for t, bits in special if bits & _USER_DEFINED)
        self._special = self._special_texts(t for t, _ in special)
        self.quick_bytes = 0
        self._not_printed = frozenset(t for t, bits in special if bits & _NOT_PRINTED)
        self._pieces, self._offsets = _pieces(pointer, self.n_tokens)
        self.unspelled = frozenset[int]()
        if self.type == _SENTENCEPIECE:
            self.unspelled = _unspelled(pointer, list(map(self.piece, every)))
        self._texts = frozenset[bytes]()  # of all tokens, to look for those of single characters
        if self.unspelled:
            self._texts = frozenset(map(fast.vocab_get_text, repeat(pointer), every))
        self.quick_bytes = self._measured_quick_bytes()

    @property
    def pointer(self) -> int:
        """The native vocabulary; raises `InternalError` after the weights were closed."""
        if self._pointer is None:
            raise InternalError("the model was unloaded while it was in use")
        return self._pointer

    def check(self, token: int) -> None:
        """Raises `InternalError` for a number that is no token: the library would end the process."""
        if not 0 <= token < self.n_tokens:
            raise InternalError(f"token {token} is outside the vocabulary of {self.n_tokens}")

    def turn_ends(self) -> frozenset[int]:
        """Return the end-of-generation tokens, and those that gpt-oss, Mistral and DeepSeek write between turns."""
        found = set[int]()
        for text in _TURN_ENDS:
            with contextlib.suppress(InvalidRequest):  # it cannot be spelled
                tokens = self.tokenize(text, add_special=False, parse_special=True)
                found |= {token for token in tokens if len(tokens) == 1 and self.piece(token) == text.encode()}
        return self.eog | found

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Raises `InvalidRequest` for a text of more than 2 GiB, or with a character that has no token."""
        raw = _utf8(text)
        if self.unspelled:
            self._check_spelled((self._special if parse_special else self._always_special).left_out(raw))
        if len(raw) > _MAX_BYTES:
            raise InvalidRequest(f"the text has {len(raw)} bytes, at most {_MAX_BYTES} can be tokenized")
        if len(raw) < _LONG_BYTES:
            return self._tokenize(raw, add_special, parse_special)
        first, last = self._ends() if add_special else ([], [])
        tokens = first
        for piece in (self._special if parse_special else self._always_special).pieces(raw):
            tokens += self._tokenize(piece, False, parse_special)
        return tokens + last

    def _check_spelled(self, raw: bytes) -> None:
        for char in set(raw.decode().replace(" ", "\u2581")):
            if not self.unspelled.isdisjoint(char.encode()) and char.encode() not in self._texts:
                raise InvalidRequest(f"the model's vocabulary has no token for {char!r}")

    def _ends(self) -> tuple[list[int], list[int]]:
        """Return what ``add_special`` puts before and after a text."""
        around = self._tokenize(b"", True, False)
        n_first = len(around) // 2 if len(around) != 1 else int(self.add_bos)
        return around[:n_first], around[n_first:]

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(raw) + 8
        tokenize = fast.tokenize if len(raw) <= _SHORT_BYTES <= self.quick_bytes else C.llama_tokenize
        while True:
            tokens = (ctypes.c_int32 * capacity)()
            n = tokenize(self.pointer, raw, len(raw), tokens, capacity, add_special, parse_special)
            if n >= 0:
                return _numbers(tokens, n)
            if n < -_MAX_BYTES:
                raise InvalidRequest("the text has more tokens than can be counted")
            capacity = -n

    def _measured_quick_bytes(self) -> int:
        """Return how many bytes of texts take a millisecond at worst, by measuring texts that take long.

        The library searches each text for each special token, and Gemma 3 has 6,000. For gpt-oss, Mistral and DeepSeek
        it compiles regular expressions, for each text and again after each special token: up to 0.5 ms.
        """
        texts = self._special.texts or [b"a"]
        starts = Counter(text[:1] for text in texts).most_common(1)[0][0]
        markup = (min(texts, key=len) + b"a") * _SHORT_BYTES
        worst_s = 0.0
        for raw, n_bytes in ((b"a", _LEAST_BYTES), (starts * _SHORT_BYTES, _SHORT_BYTES), (markup, _SHORT_BYTES)):
            found = []
            for _ in range(3):
                began = time.perf_counter()
                self._tokenize(raw[:n_bytes], False, True)
                found.append(time.perf_counter() - began)
            worst_s = max(worst_s, min(found) / n_bytes)
        return int(_QUICK_S / worst_s)

    def _special_texts(self, tokens: Iterable[int]) -> SpecialTexts:
        return SpecialTexts(fast.vocab_get_text(self.pointer, token) or b"" for token in tokens)

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """Return the bytes that `token` prints; with ``special=False`` nothing for control tokens."""
        if not 0 <= token < self.n_tokens:  # not by `check`: this is called for each token
            self.check(token)
        if not special and token in self._not_printed:
            return b""
        return self._pieces[self._offsets[token] : self._offsets[token + 1]]

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> bytes:
        """Return the pieces put together, as llama-server's /detokenize (no leading space is taken away)."""
        return b"".join([self.piece(token, special=special) for token in tokens])

    def close(self) -> None:
        """Refuse every later native call, because the weights are freed. Pieces that were read stay readable."""
        self._pointer = None


def _numbers(tokens: "ctypes.Array[ctypes.c_int32]", n: int) -> list[int]:
    """Return the first `n`, without keeping other threads waiting: four million in one go take 200 ms."""
    if n <= _SLICE:
        return tokens[:n]
    numbers: list[int] = []
    for start in range(0, n, _SLICE):
        numbers += tokens[start : min(start + _SLICE, n)]
    return numbers


def _pieces(pointer: int, n_tokens: int) -> "tuple[bytes, array[int]]":
    """Return the texts of all tokens, joined, and where each ends; a list of objects would take 50 bytes a token."""
    buffer = ctypes.create_string_buffer(_PIECE_BYTES)
    read, string_at = fast.token_to_piece, ctypes.string_at
    pieces, ends = bytearray(), array("I", [0])
    for token in range(n_tokens):
        n = read(pointer, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = read(pointer, token, buffer, -n, 0, True)
        pieces += string_at(buffer, max(n, 0))
        ends.append(len(pieces))
    return bytes(pieces), ends


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can carry halves of surrogate pairs: join the whole ones, replace the others
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _unspelled(pointer: int, pieces: Sequence[bytes]) -> frozenset[int]:
    """Return the bytes of UTF-8 that no token of a SentencePiece vocabulary spells."""
    single = compress(range(len(pieces)), map((1).__eq__, map(len, pieces)))
    texts = set(map(fast.vocab_get_text, repeat(pointer), single))
    found = [byte for byte in _UTF8_BYTES if texts.isdisjoint((b"<0x%02X>" % byte, bytes((byte,))))]
    if found:  # a token of another type may have that text
        texts.update(pieces)
    return frozenset(byte for byte in found if b"<0x%02X>" % byte not in texts)


def _suppressed(pointer: int) -> tuple[int, ...]:
    """Tokens that the model's file forbids to generate (llama_vocab_get_suppress_tokens)."""
    count = ctypes.c_int32(0)
    tokens = C.llama_vocab_get_suppress_tokens(pointer, ctypes.byref(count))
    return tuple(tokens[: count.value]) if tokens and count.value > 0 else ()
