"""How long a picture takes to be there tells nobody whether others have sent it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.engine.encode import EmbeddingCache, Encoder, scoped_key


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


def test_embeddings_are_shared_within_a_scope() -> None:
    projector = Projector()
    encoder = Encoder(projector, EmbeddingCache(1 << 20), lambda: None)
    try:
        for scope in ("", "ada/", "ada/", "bert/", "", "ada/salt"):
            come = threading.Event()
            encoding = encoder.ask(Chunk(b"cat"), come.set, scope)  # type: ignore[arg-type]
            assert encoding.done or come.wait(60)
            assert encoding.embeddings == b"embeddings of cat"
            encoder.leave(encoding)
    finally:
        encoder.close()
    assert projector.keys == [b"cat"] * 4


def test_keys_differ_by_scope_however_long_it_is() -> None:
    long = "a" * 200
    keys = [scoped_key(b"cat", scope) for scope in ("", "a/", "b/", long, long + "b")]
    assert len(set(keys)) == 5
    assert keys[0] == b"cat"
