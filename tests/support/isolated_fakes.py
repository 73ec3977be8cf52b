"""Fake models for worker processes. Prompts and paths make their processes crash, hang or wait."""

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


class ScriptedRunner(FakeRunner):
    """A runner that obeys commands in the text of its sequences.

    ``!die once FILE!`` creates FILE and kills the process, unless FILE exists. ``!die late FILE!`` does the same in the
    middle of the reply. ``!hang FILE!`` creates FILE and never ends the step. ``!wait N!`` slows the steps down once a
    reply has `WAITS_AFTER` characters, and never ends the step when N replies have.
    """

    def __init__(self, n_ctx_seq: int = 4096, replies: Mapping[str, str] | None = None) -> None:
        super().__init__(on_decode=self._act, n_ctx_seq=n_ctx_seq, n_batch=512, replies=replies)
        self._waiting: set[int] = set()

    def _act(self, entries: Sequence[BatchEntry]) -> None:
        for entry in entries:
            text = self._text([*self.cells[entry.seq], *entry.tokens])
            reply = text.rpartition(b"assistant")[2]

            def argument(command: bytes, text: bytes = text) -> str:
                return text.split(command)[1].split(b"!")[0].decode()

            if b"!hang " in text:
                Path(argument(b"!hang ")).touch()
                threading.Event().wait()
            if b"!wait " in text and len(reply) > WAITS_AFTER:
                self._wait(entry.seq, int(argument(b"!wait ")))
            if b"!die once " in text:
                die_once(argument(b"!die once "))
            if b"!die late " in text and len(reply) > WAITS_AFTER:
                die_once(argument(b"!die late "))

    def _wait(self, seq: int, n_sequences: int) -> None:
        self._waiting.add(seq)
        if len(self._waiting) == n_sequences:
            threading.Event().wait()
        time.sleep(0.02)


def die_once(path: str) -> None:
    """Create the file at `path` and kill the process, unless the file exists. If its folder is missing, always kill."""
    if not os.path.exists(path):
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(path, os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)


class AbortingLoader(FakeLoader):
    """Aborts the process when a file is measured or loaded."""

    def least(self, spec: ModelSpec) -> Footprint:
        os.abort()

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        os.abort()


class HangingLoader(FakeLoader):
    """Never returns from `method`: "least" or "load"."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def least(self, spec: ModelSpec) -> Footprint:
        self._hang("least")
        return {HOST: Bytes(1)}

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        self._hang("load")
        return super().load(spec, progress)

    def _hang(self, method: str) -> None:
        if method == self._method:
            threading.Event().wait()


@dataclass(eq=False, slots=True)
class ImageChunk(FakeChunk):
    """An image. ``decoded`` returns its pixels."""

    decoded: Callable[[], bytes] = bytes


class ImageReader(FakeReader):
    """Turns each image into three tokens that must be encoded."""

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        tokens, spans = [BOS] if add_special else [], list[MediaSpan]()
        for part in parts:
            if isinstance(part, str):
                tokens += self.vocab.tokenize(part, add_special=False, parse_special=parse_special)
                continue
            nth = sum(span.id == part.id for span in spans)
            span = MediaSpan(len(tokens), 3, 3, True, part.id, nth, chunk=ImageChunk(part.id, decoded=part.decoded))
            tokens += media_tokens(span.id, span.nth, span.n_tokens)
            spans.append(span)
        return MediaPrompt(tokens, tuple(spans))


class ImageEncoder(FakeEncoder):
    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        for chunk in chunks[: self.most]:
            assert isinstance(chunk, ImageChunk)
            assert chunk.decoded(), "the image has no pixels"
        return super().encode(chunks)


class HangingEncoder(ImageEncoder):
    """Creates the file at `path` and never returns, unless the file exists."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        if not os.path.exists(self._path):
            Path(self._path).touch()
            threading.Event().wait()
        return super().encode(chunks)


class VisionLoader(FakeLoader):
    def __init__(
        self,
        embedder: Callable[[], FakeEmbeddingRunner] | None = None,
        encoder: Callable[[], FakeEncoder] = ImageEncoder,
    ) -> None:
        super().__init__(runner=lambda: FakeRunner(encoder=encoder()), embedder=embedder, media=frozenset({"image"}))

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        weights = super().load(spec, progress)
        weights.media = ImageReader(weights.vocab, self.kinds)
        return weights


class DyingEmbedder(FakeEmbeddingRunner):
    """Kills the process at the first input, unless the file at `path` exists."""

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
TOOL_CALLS = {
    f"Go{TURN}": '<tool_call>\n{"name": "calc__end", "arguments": {}}\n</tool_call>',
    f"<tool_response>\nended\n</tool_response>{TURN}": "It goes on.",
}


def make_loader(kind: str) -> Loader:
    """Return a loader: one of the kinds below, or a plain `FakeLoader` for an unknown kind.

    A path gives a `DyingEmbedder` with this path, and ``encodes PATH`` a `HangingEncoder`.
    """
    if kind.startswith("/"):
        return VisionLoader(partial(DyingEmbedder, kind))
    if kind.startswith("encodes "):
        return VisionLoader(encoder=partial(HangingEncoder, kind.removeprefix("encodes ")))
    kinds: dict[str, Callable[[], FakeLoader]] = {
        "acting": lambda: FakeLoader(runner=ScriptedRunner),
        "aborting": AbortingLoader,
        **{f"hanging in {at}": partial(HangingLoader, at) for at in ("least", "load")},
        "calling": lambda: FakeLoader(runner=partial(ScriptedRunner, 16384, TOOL_CALLS)),
        "sized": SizedLoader,
        "vision": VisionLoader,
    }
    return kinds.get(kind, FakeLoader)()


def in_process(kind: str = "acting") -> Callable[[], Loader]:
    return partial(make_loader, kind)
