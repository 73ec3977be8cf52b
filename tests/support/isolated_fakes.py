"""A fake model for a process of its own: what is said to it decides how its process ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server.engine.media import MediaPrompt, MediaSpan, media_tokens
from server.engine.runner_api import BatchEntry, Vectors
from server.media.bitmap import Bitmap
from server.pool.memory import HOST, Bytes, Footprint
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec
from tests.support.fakes import (
    BOS,
    FakeChunk,
    FakeEmbeddingRunner,
    FakeEncoder,
    FakeLoader,
    FakeReader,
    FakeRunner,
    FakeWeights,
)

WAITS_AFTER = 8  # characters of a reply


class Acting(FakeRunner):
    """``!die once FILE!`` in a sequence kills the process unless FILE is there, which is then made; ``!die late FILE!``
    does so in the middle of the reply; ``!hang FILE!`` makes FILE and never ends the step; ``!wait N!`` stops there
    once N such sequences have come so far, and is slow until then."""

    def __init__(self, n_ctx_seq: int = 4096, replies: Mapping[str, str] | None = None) -> None:
        super().__init__(on_decode=self._act, n_ctx_seq=n_ctx_seq, n_batch=512, replies=replies)
        self._waiting: set[int] = set()

    def _act(self, entries: Sequence[BatchEntry]) -> None:
        for entry in entries:
            said = self._text([*self.cells[entry.seq], *entry.tokens])
            if b"!hang " in said:
                Path(said.split(b"!hang ")[1].split(b"!")[0].decode()).touch()
                threading.Event().wait()
            if b"!wait " in said:
                self._wait(entry.seq, said.split(b"!wait ")[1])
            if b"!die once " in said:
                die_once(said.split(b"!die once ")[1].split(b"!")[0].decode())
            if b"!die late " in said and len(said.rpartition(b"assistant")[2]) > WAITS_AFTER:
                die_once(said.split(b"!die late ")[1].split(b"!")[0].decode())

    def _wait(self, seq: int, said: bytes) -> None:
        wanted, reply = said.split(b"!")[0], said.rpartition(b"assistant")[2]
        if len(reply) > WAITS_AFTER:
            self._waiting.add(seq)
            if len(self._waiting) == int(wanted):
                threading.Event().wait()
            time.sleep(0.02)


def die_once(path: str) -> None:
    """Kill the process, the first time; every time where nothing can be made."""
    if not os.path.exists(path):
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(path, os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)


class AbortingLoader(FakeLoader):
    """A file that the library does not survive: not even a look at it."""

    def least(self, spec: ModelSpec) -> Footprint:
        os.abort()

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        os.abort()


class HangingLoader(FakeLoader):
    """What it does `at` that never ends."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def least(self, spec: ModelSpec) -> Footprint:
        self._hang("least")
        return {HOST: Bytes(1)}

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        self._hang("load")
        return super().load(spec, progress)

    def _hang(self, at: str) -> None:
        if at == self._at:
            threading.Event().wait()


@dataclass(eq=False, slots=True)
class Seen(FakeChunk):
    """A picture; ``decoded``: where its pixels come from."""

    decoded: Callable[[], bytes] = bytes


class SeeingReader(FakeReader):
    """A picture is three tokens that have to be encoded."""

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        tokens, spans = [BOS] if add_special else [], list[MediaSpan]()
        for part in parts:
            if isinstance(part, str):
                tokens += self.vocab.tokenize(part, add_special=False, parse_special=parse_special)
                continue
            nth = sum(span.id == part.id for span in spans)
            span = MediaSpan(len(tokens), 3, 3, True, part.id, nth, chunk=Seen(part.id, decoded=part.decoded))
            tokens += media_tokens(span.id, span.nth, span.n_tokens)
            spans.append(span)
        return MediaPrompt(tokens, tuple(spans))


class SeeingEncoder(FakeEncoder):
    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        for chunk in chunks[: self.most]:
            assert isinstance(chunk, Seen)
            assert chunk.decoded(), "nothing to see"
        return super().encode(chunks)


class HangingEncoder(SeeingEncoder):
    """Creates the file at `path` and never returns, unless the file is there."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        if not os.path.exists(self._path):
            Path(self._path).touch()
            threading.Event().wait()
        return super().encode(chunks)


class SeeingLoader(FakeLoader):
    def __init__(
        self,
        embedder: Callable[[], FakeEmbeddingRunner] | None = None,
        encoder: Callable[[], FakeEncoder] = SeeingEncoder,
    ) -> None:
        super().__init__(runner=lambda: FakeRunner(encoder=encoder()), embedder=embedder, media=frozenset({"image"}))

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        weights.media = SeeingReader(weights.vocab, self.kinds)
        return weights


class ActingEmbedder(FakeEmbeddingRunner):
    """Its first input kills the process, unless the file at `path` is there."""

    takes_media = True

    def __init__(self, path: str) -> None:
        super().__init__(on_embed=lambda _: die_once(path))
        self._path = path

    def embed_media(self, prompt: MediaPrompt, on_part: object) -> Vectors:
        assert prompt.spans
        die_once(self._path)
        return self.vectors(prompt.tokens)


class SizedLoader(FakeLoader):
    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(1)}


TURN = "<|im_end|>\n<|im_start|>assistant\n"
CALLING = {
    f"Go{TURN}": '<tool_call>\n{"name": "calc__end", "arguments": {}}\n</tool_call>',
    f"<tool_response>\nended\n</tool_response>{TURN}": "It goes on.",
}


def make_loader(kind: str) -> Loader:
    """Return the loader of a kind: one of the names below, the path of an `ActingEmbedder`, or the path of a
    `HangingEncoder` after ``encodes``. Any other name gives a plain `FakeLoader`."""
    if kind.startswith("/"):
        return SeeingLoader(partial(ActingEmbedder, kind))
    if kind.startswith("encodes "):
        return SeeingLoader(encoder=partial(HangingEncoder, kind.removeprefix("encodes ")))
    kinds: dict[str, Callable[[], FakeLoader]] = {
        "acting": lambda: FakeLoader(runner=Acting),
        "aborting": AbortingLoader,
        **{f"hanging in {at}": partial(HangingLoader, at) for at in ("least", "load")},
        "calling": lambda: FakeLoader(runner=partial(Acting, 16384, CALLING)),
        "sized": SizedLoader,
        "seeing": SeeingLoader,
    }
    return kinds.get(kind, FakeLoader)()


def in_process(kind: str = "acting") -> Callable[[], Loader]:
    return partial(make_loader, kind)
