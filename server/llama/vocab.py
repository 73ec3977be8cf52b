"""A model's vocabulary: tokenization, pieces, special tokens.

A long text is split after special tokens, so that tokenization takes linear time. For every special token llama.cpp
walks the list of fragments from its start (src/llama-vocab.cpp, tokenizer_st_partition): 400 kB of ``<|im_end|>x``
take 44 s, 4 MB more than an hour. The parts can be tokenized separately: tokens up to a special token do not depend on
the text after it, and that text is tokenized as at the start, without BOS.

For most BPE vocabularies, llama.cpp splits a text into words with std::regex, which recurses for each character of a
match (321 bytes of stack on x86-64): 30 kB of one letter overflow a stack of 8 MiB and end the process. So texts with
long runs are tokenized in a thread with a large stack, and long texts are cut, between words where there are any.
"""

import contextlib
import ctypes
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import compress, pairwise, repeat
from typing import TypeVar

import numpy as np

from server.errors import InternalError, InvalidRequest
from server.llama.library import C, fast

T = TypeVar("T")
MIN_PIECE_BYTES = 256  # the time of a piece is quadratic in its size
MAX_PIECE_BYTES = 1 << 16  # of a text for std::regex
_WINDOW_BYTES = 4096  # searched by `re` at a time, which holds the GIL
_STACK_BYTES = 64 << 20  # three times what a match of MAX_PIECE_BYTES needs
_SAFE_RUN_BYTES = 1024  # a match of this size needs a third of musl's smallest stack, 1 MiB
_RUN_END = re.compile(rb"[!-/:-@[-`{-~](?= )|\n(?=[!-.0-~])")
"""Positions inside no match of any pre-tokenizer's pattern."""
_WORD_ENDS = (
    re.compile(rb"(?<=[!-~])\n(?=[0-9A-Za-z])"),
    re.compile(rb"[!-~](?= )"),
    re.compile(rb"[0-9A-Za-z](?=[!-&(-/:-@[-`{-~])"),
)
"""Positions between two matches of most patterns, best first: a text that ends there has the same matches before it.
The second and third may be inside words of vocabularies whose words contain spaces or punctuation.
"""


def needs_deep_stack(raw: bytes) -> bool:
    """Return whether std::regex may recurse too deeply for the stack of a thread."""
    return len(raw) > _SAFE_RUN_BYTES and max(map(len, _RUN_END.split(raw))) > _SAFE_RUN_BYTES


def with_deep_stack(call: Callable[[], T]) -> T:
    """Return the result of `call` in a thread with a large stack, of which only used pages take memory."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised below
            done.set_exception(error)

    thread = threading.Thread(target=run, name="llamapool-tokenize")
    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise InternalError(f"the system has no thread left to tokenize in: {error}") from None
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()


_stack_size = threading.Lock()  # the size is a setting of the process


def cut(raw: bytes, n_last: int = 0) -> Iterator[bytes]:
    """Yield a text for std::regex in pieces of `MAX_PIECE_BYTES`; the last `n_last` bytes, a special text, stay whole.
    If the text has words or lines, its tokens do not change.
    """
    start = 0
    while len(raw) - start > MAX_PIECE_BYTES + n_last:
        end = start + MAX_PIECE_BYTES
        for pattern in _WORD_ENDS:
            if ends := [match.end() for match in pattern.finditer(raw, start + MAX_PIECE_BYTES // 2, end)]:
                end = ends[-1]
                break
        else:
            while raw[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        yield raw[start:end]
        start = end
    yield raw[start:]


class SpecialTexts:
    """The texts of a vocabulary's special tokens, which the tokenizer matches first."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self.longest = len(self.texts[0]) if self.texts else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self.texts)))
        self._overlapping = cache(lambda text: tuple(other for other in self.texts if _can_overlap(text, other)))

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """Yield `raw` in pieces. Each, except the last, ends with a special text that is certainly one token."""
        start = 0
        while self.texts and (end := self._split_point(raw, start + MIN_PIECE_BYTES)):
            yield raw[start:end]
            start = end
        yield raw[start:]

    def without_special(self, raw: bytes) -> bytes:
        """Return `raw` without special texts."""
        return self._pattern.sub(b"", raw)

    def _split_point(self, raw: bytes, at: int) -> int:
        """Return the end of the first special text at or after `at` that no other one overlaps; 0 = none."""
        while at < len(raw):
            window_end = at + _WINDOW_BYTES
            match = self._pattern.search(raw, at, window_end + self.longest)
            if match is None:
                at = window_end
            elif self._is_unambiguous(raw, match.start(), match[0]):
                return match.end()
            else:
                at = match.start() + 1
        return 0

    def _is_unambiguous(self, raw: bytes, at: int, text: bytes) -> bool:
        """Return whether no special text overlaps the one at `at`. The tokenizer prefers the longer, then the left."""
        for other in self._overlapping(text):
            first = max(0, at - len(other) + 1)
            found = raw.find(other, first, at + len(text) + len(other) - 1)
            if found == at and other == text:
                found = raw.find(other, at + 1, at + len(text) + len(other) - 1)
            if found >= 0:
                return False
        return True


def _can_overlap(one: bytes, other: bytes) -> bool:
    """Return whether two special texts can overlap in a text; a text may overlap itself."""
    if one != other and (one in other or other in one):
        return True
    sizes = range(1, min(len(one), len(other)))
    return any(one.endswith(other[:n]) or other.endswith(one[:n]) for n in sizes)


_MAX_BYTES = (1 << 31) - 1
_PIECE_BYTES = 64
_SLICE = 16384  # tokens converted to Python integers at a time, while the GIL is held
_SHORT_BYTES = 256  # texts up to this size are tokenized in microseconds with most vocabularies
_QUICK_S = 1e-3
_MIN_BYTES = 4  # of a text in a JSON array
_LONG_BYTES = 4096  # longer texts are split at special tokens
_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4  # enum llama_token_attr
_STRIPS = 1 << 7 | 1 << 8  # of spaces next to a token
_TURN_ENDS = ("<|end|>", "[/INST]", "<\uff5cAssistant\uff5c>")
_NOT_PRINTED = _UNKNOWN | _CONTROL  # llama_vocab::impl::token_to_piece
_SENTENCEPIECE, BPE = 1, 2  # enum llama_vocab_type
_UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))
_SPECIAL = _USER_DEFINED | _NOT_PRINTED


class LlamaVocab:
    """`server.engine.runner_api.Vocab` of a loaded model. Ids are -1 for tokens that the model lacks. Thread-safe until
    the weights are closed. ``missing_bytes``: bytes for which a SentencePiece vocabulary has no token. The library
    aborts at a character that needs one (src/llama-vocab.cpp, byte_to_token).
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
        ids = range(self.n_tokens)  # 150,000 are common, so no Python code runs for each
        self.eog: frozenset[int] = frozenset(compress(ids, map(fast.vocab_is_eog, repeat(pointer), ids)))
        self.suppressed: tuple[int, ...] = _suppressed(pointer)
        special = [
            (t, bits) for t, bits in enumerate(map(fast.vocab_get_attr, repeat(pointer), ids)) if bits & _SPECIAL
        ]
        self._always_special = self._special_texts(t for t, bits in special if bits & _USER_DEFINED)
        self._special = self._special_texts(t for t, _ in special)
        self.quick_bytes = 0
        self._not_printed = frozenset(t for t, bits in special if bits & _NOT_PRINTED)
        self._pieces, self._offsets = _pieces(pointer, self.n_tokens)
        strips = any(bits & _STRIPS for _, bits in special)
        self.max_token_bytes = 0 if strips else _max_token_bytes(self.type, self._pieces, self._offsets)
        self.missing_bytes = frozenset[int]()
        if self.type == _SENTENCEPIECE:
            self.missing_bytes = _missing_bytes(pointer, list(map(self.piece, ids)))
        self._texts = frozenset[bytes]()  # of all tokens, among which single characters are searched
        if self.missing_bytes:
            self._texts = frozenset(map(fast.vocab_get_text, repeat(pointer), ids))
        self.quick_bytes = self._measured_quick_bytes()

    @property
    def pointer(self) -> int:
        """The native vocabulary; raises `InternalError` after the weights were closed."""
        if self._pointer is None:
            raise InternalError("the model was unloaded while it was in use")
        return self._pointer

    def check(self, token: int) -> None:
        """Raise `InternalError` for an id outside the vocabulary, on which the library would abort."""
        if not 0 <= token < self.n_tokens:
            raise InternalError(f"token {token} is outside the vocabulary of {self.n_tokens}")

    def turn_ends(self) -> frozenset[int]:
        """Return the end-of-generation tokens, and the tokens between turns of gpt-oss, Mistral and DeepSeek."""
        separators = set[int]()
        for text in _TURN_ENDS:
            with contextlib.suppress(InvalidRequest):  # a character has no token
                tokens = self.tokenize(text, add_special=False, parse_special=True)
                separators |= {token for token in tokens if len(tokens) == 1 and self.piece(token) == text.encode()}
        return self.eog | separators

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of `text`. Raises `InvalidRequest` for more than 2 GiB, and for characters without a token.

        `add_special`: add BOS and EOS as the model demands. `parse_special`: recognize control tokens in the text.
        """
        raw = _utf8(text)
        if self.missing_bytes:
            self._check_characters((self._special if parse_special else self._always_special).without_special(raw))
        if len(raw) > _MAX_BYTES:
            raise InvalidRequest(f"the text has {len(raw)} bytes, at most {_MAX_BYTES} can be tokenized")
        if len(raw) < _LONG_BYTES:
            return self._tokenize(raw, add_special, parse_special)
        tokens, suffix = self._added_tokens() if add_special else ([], [])
        pieces = list(self.pieces(raw, parse_special=parse_special))

        def tokenize_pieces() -> None:
            for piece in pieces:
                tokens.extend(self._tokenize_piece(piece, False, parse_special))

        self._with_stack(pieces, tokenize_pieces)
        return tokens + suffix

    def pieces(self, raw: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """Yield a long text in pieces that can be tokenized separately."""
        special = self._special if parse_special else self._always_special
        for piece in special.pieces(raw):
            yield from cut(piece, special.longest) if self.type == BPE else (piece,)

    def _check_characters(self, raw: bytes) -> None:
        """Raise `InvalidRequest` if a character has no token."""
        for char in set(raw.decode().replace(" ", "\u2581")):
            if not self.missing_bytes.isdisjoint(char.encode()) and char.encode() not in self._texts:
                raise InvalidRequest(f"the model's vocabulary has no token for {char!r}")

    def _added_tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens that ``add_special`` adds before and after a text."""
        added = self._tokenize(b"", True, False)
        n_before = len(added) // 2 if len(added) != 1 else int(self.add_bos)
        return added[:n_before], added[n_before:]

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        return self._with_stack([raw], partial(self._tokenize_piece, raw, add_special, parse_special))

    def _with_stack(self, pieces: Iterable[bytes], call: Callable[[], T]) -> T:
        """Return the result of `call`, which tokenizes `pieces`. If any needs a deep stack, it runs in one thread. To
        start it takes as long as tokenizing a kilobyte.
        """
        return with_deep_stack(call) if self.type == BPE and any(map(needs_deep_stack, pieces)) else call()

    def _tokenize_piece(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(raw) + 8
        tokenize = fast.tokenize if len(raw) <= _SHORT_BYTES <= self.quick_bytes else C.llama_tokenize
        while True:
            tokens = (ctypes.c_int32 * capacity)()
            n: int = tokenize(self.pointer, raw, len(raw), tokens, capacity, add_special, parse_special)
            if n >= 0:
                return _numbers(tokens, n)
            if n < -_MAX_BYTES:
                raise InvalidRequest("the text has more tokens than can be counted")
            capacity = -n

    def _measured_quick_bytes(self) -> int:
        """Return the size of a text whose tokenization takes at most a millisecond, by measuring slow texts.

        The library searches each text for each special token, of which Gemma 3 has 6,000. For gpt-oss, Mistral and
        DeepSeek it compiles regular expressions, once for each text and after each special token: up to 0.5 ms.
        """
        texts = self._special.texts or [b"a"]
        first_byte = Counter(text[:1] for text in texts).most_common(1)[0][0]
        markup = (min(texts, key=len) + b"a") * _SHORT_BYTES
        slowest_s = 0.0  # per byte
        for raw, n_bytes in ((b"a", _MIN_BYTES), (first_byte * _SHORT_BYTES, _SHORT_BYTES), (markup, _SHORT_BYTES)):
            times_s = []
            for _ in range(3):
                began = time.perf_counter()
                self._tokenize(raw[:n_bytes], False, True)
                times_s.append(time.perf_counter() - began)
            slowest_s = max(slowest_s, min(times_s) / n_bytes)
        return int(_QUICK_S / slowest_s)

    def _special_texts(self, tokens: Iterable[int]) -> SpecialTexts:
        return SpecialTexts(fast.vocab_get_text(self.pointer, token) or b"" for token in tokens)

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """Return the text of `token`; with ``special=False``, nothing for control tokens."""
        if not 0 <= token < self.n_tokens:  # a call of `check` for each token would be slower
            self.check(token)
        if not special and token in self._not_printed:
            return b""
        return self._pieces[self._offsets[token] : self._offsets[token + 1]]

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> bytes:
        """Return the joined pieces, like llama-server's /detokenize, which does not strip a leading space."""
        return b"".join([self.piece(token, special=special) for token in tokens])

    def terminated_pieces(self) -> bytes:
        """Return the texts of all tokens, each followed by a zero byte."""
        return b"".join([self._pieces[start:end] + b"\0" for start, end in pairwise(self._offsets)])

    def close(self) -> None:
        """Make later native calls raise, because the weights are freed. `piece` and `detokenize` still work."""
        self._pointer = None


def _numbers(tokens: "ctypes.Array[ctypes.c_int32]", n: int) -> list[int]:
    """Return the first `n` tokens. In one slice, four million of them would hold the GIL for 200 ms."""
    if n <= _SLICE:
        return tokens[:n]
    numbers: list[int] = []
    for start in range(0, n, _SLICE):
        numbers += tokens[start : min(start + _SLICE, n)]
    return numbers


def _pieces(pointer: int, n_tokens: int) -> "tuple[bytes, array[int]]":
    """Return the joined texts of all tokens, and the offset where each ends. A list would take 50 bytes per token."""
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


def _max_token_bytes(kind: int, pieces: bytes, offsets: "array[int]") -> int:
    """Return the size of the longest piece; 0 for vocabularies that normalize texts or lack a byte."""
    ends = np.frombuffer(offsets, np.uintc)
    sizes = np.diff(ends)
    singles = {pieces[at] for at in ends[:-1][sizes == 1].tolist()}
    return int(sizes.max()) if kind in (_SENTENCEPIECE, BPE) and singles.issuperset(_UTF8_BYTES) else 0


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can contain surrogates: join pairs, replace the others
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _missing_bytes(pointer: int, pieces: Sequence[bytes]) -> frozenset[int]:
    """Return the bytes of UTF-8 without a token in a SentencePiece vocabulary."""
    single = compress(range(len(pieces)), map((1).__eq__, map(len, pieces)))
    texts = set(map(fast.vocab_get_text, repeat(pointer), single))
    missing = [byte for byte in _UTF8_BYTES if texts.isdisjoint((b"<0x%02X>" % byte, bytes((byte,))))]
    if missing:  # a token of another type may have the text <0x..>
        texts.update(pieces)
    return frozenset(byte for byte in missing if b"<0x%02X>" % byte not in texts)


def _suppressed(pointer: int) -> tuple[int, ...]:
    """Return the tokens that the model's file bans from generation (llama_vocab_get_suppress_tokens)."""
    count = ctypes.c_int32(0)
    tokens = C.llama_vocab_get_suppress_tokens(pointer, ctypes.byref(count))
    return tuple(tokens[: count.value]) if tokens and count.value > 0 else ()
