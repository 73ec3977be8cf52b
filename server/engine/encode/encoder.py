"""The thread that computes embeddings of media, for all instances of a model.

A step never waits for it: a sequence asks for what it lacks when it gets its slot, and until that is there others
decode. Who asks for what somebody has asked for already gets the same answer. What nobody wants any more is not begun.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from server.engine.encode.cache import EmbeddingCache
from server.engine.media import MediaChunk
from server.engine.runner_api import MediaEncoder
from server.errors import CONTAINED, InternalError

log = logging.getLogger(__name__)

MOST_TOGETHER = 64
"""Media that are offered to the projector at once; how many it takes is its own to say."""


@dataclass(eq=False, slots=True)
class Encoding:
    """The embeddings of one medium, once they are there, or why they will not be."""

    chunk: MediaChunk
    key: bytes
    n_wanting: int = 0
    embeddings: bytes | None = None
    error: Exception | None = None
    wakes: list[Callable[[], None]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to come."""
        return self.embeddings is not None or self.error is not None


def scoped_key(key: bytes, scope: str) -> bytes:
    """A chunk's key within a scope; everybody's is the chunk's own."""
    return hashlib.blake2b(key + b"\0" + scope.encode(), digest_size=32).digest() if scope else key


class Encoder:
    """Used by step threads; `close` ends it."""

    def __init__(self, projector: MediaEncoder, cache: EmbeddingCache, begin: Callable[[], None]) -> None:
        """`begin` is called first in the thread."""
        self._projector = projector
        self._begin = begin
        self.cache = cache
        self._changed = threading.Condition()
        self._open: dict[bytes, Encoding] = {}  # by key, in the order in which they were asked for
        self._closing = False
        self.n_encoded = 0
        self._thread = threading.Thread(target=self._run, name="llamapool-encode", daemon=True)
        self._thread.start()

    def ask(self, chunk: MediaChunk, wake: Callable[[], None], scope: str = "") -> Encoding:
        """The embeddings of `chunk`, now or later; `wake` is called, in another thread, when they come later.

        They are shared within a `scope` (`cache_scope`): how long they take would say who has sent a picture before.
        """
        key = scoped_key(chunk.key, scope)
        with self._changed:
            encoding = self._open.get(key)
            if encoding is None:
                encoding = Encoding(chunk, key, embeddings=self.cache.get(key))
                if self._closing:
                    encoding.error = InternalError("the model was unloaded while it was in use")
                if not encoding.done:
                    self._open[key] = encoding
                    self._changed.notify_all()
            encoding.n_wanting += 1
            if not encoding.done:
                encoding.wakes.append(wake)
            return encoding

    def leave(self, encoding: Encoding) -> None:
        """One who asked needs it no longer."""
        with self._changed:
            encoding.n_wanting -= 1

    def close(self) -> None:
        """End the thread, once what it computes is done."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open or self._closing)
                if self._closing:
                    self._finish(list(self._open.values()), InternalError("the model was unloaded while it was in use"))
                    return
                self._open = {key: one for key, one in self._open.items() if one.n_wanting > 0}
                wanted = list(self._open.values())[:MOST_TOGETHER]
            if wanted:
                self._serve(wanted)

    def _serve(self, wanted: list[Encoding]) -> None:
        """The first of `wanted`, and those that are computed with it."""
        first = wanted[0]
        kept = self.cache.read(first.key)
        if kept is not None:
            self._give(first, kept)
            return
        try:
            found = self._projector.encode([one.chunk for one in wanted])
        except CONTAINED as error:
            if len(wanted) > 1:  # one of them may be at fault, and the others not
                self._serve(wanted[:1])
                return
            log.warning("a medium could not be encoded: %s", error)
            with self._changed:
                self._finish([first], error)
            return
        for one, embeddings in zip(wanted, found, strict=False):
            self.n_encoded += 1
            self._give(one, embeddings)
        for one, embeddings in zip(wanted, found, strict=False):
            self.cache.put(one.key, embeddings)

    def _give(self, encoding: Encoding, embeddings: bytes) -> None:
        with self._changed:
            encoding.embeddings = embeddings
            self._finish([encoding], None)

    def _finish(self, encodings: list[Encoding], error: Exception | None) -> None:
        """They are done; under the lock."""
        for encoding in encodings:
            encoding.error = error
            self._open.pop(encoding.key, None)
            wakes, encoding.wakes = encoding.wakes, []
            for wake in wakes:
                wake()
