"""The cache of media embeddings in RAM and on disk, its files, and faults of the encoder thread. Uses fake encoders."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from server.engine.encode import EmbeddingCache, Encoder
from server.errors import InternalError
from server.pool.saved.state_cache import EMBEDDINGS_SUFFIX, EmbeddingFolder
from tests.support.fakes import FakeChunk, FakeEncoder


class FakeFiles:
    """`EmbeddingFiles` in memory. While ``broken``, reads and writes raise."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self.broken = False

    def limit_to(self, n_bytes: int) -> int:
        while sum(map(len, self.files.values())) > n_bytes:
            del self.files[next(iter(self.files))]
        return sum(map(len, self.files.values()))

    def read(self, key: bytes) -> bytes | None:
        if self.broken:
            raise InternalError("injected")
        return self.files.get(key)

    def write(self, key: bytes, data: bytes) -> None:
        if self.broken:
            raise InternalError("injected")
        self.files[key] = data


KEYS = [bytes([i]) for i in range(8)]


@given(
    st.integers(0, 100),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["put", "get", "read", "lose"]), st.sampled_from(KEYS)), max_size=60),
)
def test_cache_stays_correct_and_within_limit(limit: int, has_disk: bool, operations: list[tuple[str, bytes]]) -> None:
    files, cache = FakeFiles(), EmbeddingCache(limit)
    if has_disk:
        cache.use_disk(files)
    for operation, key in operations:
        data = key * (10 + 3 * key[0])
        if operation == "put":
            cache.keep(key, data)
            cache.write(key, data)
        elif operation == "lose":
            files.files.pop(key, None)
        else:
            assert (cache.get(key) if operation == "get" else cache.read(key)) in (None, data)
        assert cache.size <= limit
        assert sum(map(len, files.files.values())) <= limit // 2


def test_cache_serves_from_ram_while_its_disk_fails() -> None:
    files, cache = FakeFiles(), EmbeddingCache(100)
    cache.use_disk(files)
    files.broken = True
    cache.keep(b"a", b"x")
    cache.write(b"a", b"x")
    assert cache.get(b"a") == b"x"
    assert cache.read(b"b") is None


def test_damaged_file_is_deleted_and_not_returned(tmp_path: Path) -> None:
    folder = EmbeddingFolder("model", tmp_path)
    assert folder.limit_to(1000) == 0
    folder.write(b"one", b"numbers")
    folder.write(b"two", b"others")
    assert folder.limit_to(1000) == 7 + 6 + 2 * 32
    assert folder.read(b"one") == b"numbers"
    (path,) = tmp_path.rglob(f"{b'two'.hex()}{EMBEDDINGS_SUFFIX}")
    path.write_bytes(b"O" + path.read_bytes()[1:])
    assert folder.read(b"two") is None
    assert not path.exists()
    assert folder.read(b"three") is None
    assert folder.limit_to(38) == 0


def test_limit_removes_the_least_recently_used_file(tmp_path: Path) -> None:
    folder = EmbeddingFolder("model", tmp_path)
    folder.limit_to(1000)
    for age_s, key in ((30, b"read"), (20, b"old"), (10, b"new")):
        folder.write(key, b"numbers")
        (path,) = tmp_path.rglob(f"{key.hex()}{EMBEDDINGS_SUFFIX}")
        os.utime(path, (time.time() - age_s,) * 2)
    assert folder.read(b"read")
    assert folder.limit_to(2 * (7 + 32)) == 2 * (7 + 32)
    assert [folder.read(key) for key in (b"read", b"old", b"new")] == [b"numbers", None, b"numbers"]


class Panic(BaseException):
    """An error that is no `Exception`, like a panic of a Rust library."""


def test_any_error_of_the_projector_fails_its_encoding_and_not_the_thread() -> None:
    """Errors other than the engine's own ended the thread, and requests waited forever."""

    class FailingEncoder(FakeEncoder):
        def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
            for chunk in chunks:
                if chunk.name != "cat":
                    raise {"bug": ZeroDivisionError("a bug"), "panic": Panic("index")}[chunk.name]
            return super().encode(chunks)

    encoder = Encoder(FailingEncoder(), EmbeddingCache(1 << 20))
    try:
        for name in ("bug", "panic", "cat"):
            ready = threading.Event()
            encoding = encoder.request(FakeChunk(name), ready.set)
            assert encoding.done() or ready.wait(60)
            assert (encoding.exception() is None) == (name == "cat")
    finally:
        encoder.stop()
        assert encoder.join(60)
