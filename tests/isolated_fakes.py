"""A fake model for a process of its own: what is said to it decides how its process ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from harness.fakes import FakeEmbeddingRunner, FakeLoader, FakeRunner, FakeWeights
from server.engine.runner_api import BatchEntry
from server.pool.footprint import HOST, Bytes, Footprint
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec

WAITS_AFTER = 8  # characters of a reply


class Acting(FakeRunner):
    """``!die once FILE!`` in a sequence kills the process unless FILE is there, which is then made; ``!die late FILE!``
    does so in the middle of the reply; ``!wait N!`` stops there once N such sequences have come so far, and is slow
    until then."""

    def __init__(self) -> None:
        super().__init__(on_decode=self._act, n_ctx_seq=4096, n_batch=512)
        self._waiting: set[int] = set()

    def _act(self, entries: Sequence[BatchEntry]) -> None:
        for entry in entries:
            said = self._text([*self.cells[entry.seq], *entry.tokens])
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


class ActingEmbedder(FakeEmbeddingRunner):
    """``die once``: a first input kills the process, unless that file is there."""

    def __init__(self, path: str) -> None:
        super().__init__(on_embed=lambda _: die_once(path))


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


class SizedLoader(FakeLoader):
    """A model takes a byte."""

    def least(self, spec: ModelSpec) -> Footprint:
        return {HOST: Bytes(1)}


def make_loader(kind: str) -> Loader:
    """In the process. ``acting``, ``plain``, ``aborting``, ``sized``, or the path of an `ActingEmbedder`."""
    if kind.startswith("/"):
        return FakeLoader(embedder=partial(ActingEmbedder, kind))
    known = {"acting": FakeLoader(runner=Acting), "aborting": AbortingLoader(), "sized": SizedLoader()}
    return known.get(kind, FakeLoader())


def in_process(kind: str = "acting") -> Callable[[], Loader]:
    """For `create_app`."""
    return partial(make_loader, kind)
