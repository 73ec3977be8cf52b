"""How long a picture takes to be there tells nobody whether others have sent it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.engine.encode import EmbeddingCache, Encoder


@dataclass(frozen=True)
class Chunk:
    """A medium's part, as far as the encoder looks."""

    key: bytes


class Projector:
    """Says how often it was asked."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def encode(self, chunks: Sequence[Any]) -> list[bytes]:
        self.keys += [chunk.key for chunk in chunks]
        return [b"embeddings of " + chunk.key for chunk in chunks]


class Panic(BaseException):
    """As a native library's."""


def test_a_fault_of_the_projector_ends_who_asked_and_no_thread() -> None:
    """Its exceptions were passed on only as far as they were the engine's own; others ended the thread, and who asked
    waited for ever."""

    class Failing(Projector):
        def encode(self, chunks: Sequence[Any]) -> list[bytes]:
            for chunk in chunks:
                if chunk.key != b"cat":
                    raise {b"bug": ZeroDivisionError("a bug"), b"panic": Panic("index")}[chunk.key]
            return super().encode(chunks)

    encoder = Encoder(Failing(), EmbeddingCache(1 << 20))
    try:
        for key in (b"bug", b"panic", b"cat"):
            come = threading.Event()
            encoding = encoder.ask(Chunk(key), come.set)  # type: ignore[arg-type]
            assert encoding.done or come.wait(60)
            assert (encoding.error is None) == (key == b"cat")
    finally:
        encoder.stop()
        assert encoder.join(60)
