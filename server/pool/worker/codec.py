"""Messages to a worker process: pickles in which objects of the model are named instead of copied.

A vocabulary, a compiled grammar, a tokenized medium or a cancellation switch exists in the worker too, or is created
there. A decoded image is passed as a remote handle (`remote_media`). Megabytes are sent besides the pickle (`long`).
"""

import io
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from server.engine.media import MediaChunk, Spans
from server.media.bitmap import Bitmap
from server.pool.worker.long import OutOfBand, Pieces
from server.structured.reasoning_end import ReasoningSwitch
from server.vocab import Vocab

Here: TypeAlias = Callable[[str, Any], object]
"""What a name of a kind means in this process."""
Heard: TypeAlias = Callable[[ReasoningSwitch], int]
Lend: TypeAlias = Callable[[Bitmap], int]
_THERE = "there"


def there(kind: str, name: Any) -> object:
    """Stands in a pickle for what `Inward` puts in its place."""
    raise AssertionError(f"a {kind} was read outside of a model's process: {name}")


class DistantChunk:
    """A medium that a model's process has tokenized, the one after so many `restarts`; forgotten there with this."""

    __slots__ = ("_forget", "causal", "key", "number", "restarts")

    def __init__(
        self, number: int, restarts: int, key: bytes, *, causal: bool, forget: Callable[[int, int], None]
    ) -> None:
        self.number, self.restarts, self.key, self.causal, self._forget = number, restarts, key, causal, forget

    def __del__(self) -> None:
        self._forget(self.number, self.restarts)


def are_known(media: Spans, restarts: int) -> bool:
    """Whether the process after so many `restarts` has these media."""
    chunks = [span.chunk for span in media]
    return all(isinstance(chunk, DistantChunk) and chunk.restarts == restarts for chunk in chunks)


class MessageEncoder(OutOfBand):
    """Pickles messages. `vocab` is the model's; `heard` gets a switch, `lend` a bitmap without its data, and each
    returns its number.
    """

    def __init__(self, vocab: Vocab | None, heard: Heard, lend: Lend) -> None:
        super().__init__()
        self._vocab, self._heard, self._lend = vocab, heard, lend

    def reducer_override(self, obj: Any) -> Any:
        """How an object that is no plain value is written."""
        if obj is self._vocab:
            return there, ("vocab", None)
        kind = type(obj)
        if kind is DistantChunk:
            return there, ("chunk", obj.number)
        if kind is Bitmap and obj.again is not None:
            return there, ("bitmap", (replace(obj, again=None), self._lend(obj)))
        if kind is ReasoningSwitch:
            return there, ("switch", self._heard(obj))
        if hasattr(kind, "recipe"):  # a compiled grammar; importing llguidance to name its class takes its time
            return there, ("constraint", tuple(obj.recipe))
        return super().reducer_override(obj)


class MessageDecoder(pickle.Unpickler):
    """Unpickles messages."""

    def __init__(self, body: bytes, here: Here, long: Iterable[bytes] = ()) -> None:
        """`long`: the buffers that came with `body`."""
        super().__init__(io.BytesIO(body), buffers=long)
        self._here = here

    def find_class(self, module: str, name: str) -> Any:
        """Resolve any class, and `there` to its local meaning."""
        return self._here if (module, name) == (__name__, _THERE) else super().find_class(module, name)


def written(message: tuple[object, ...], vocab: Vocab | None, heard: Heard, lend: Lend) -> Pieces:
    """Return a message for `Inward`."""
    return MessageEncoder(vocab, heard, lend).pieces(message)


class KeptMedia:
    """The media that a model's process keeps for the other side, by number."""

    def __init__(self) -> None:
        self._chunks: dict[int, MediaChunk] = {}
        self._n = 0

    def add(self, chunk: MediaChunk) -> int:
        """Its number."""
        self._n += 1
        self._chunks[self._n] = chunk
        return self._n

    def __getitem__(self, number: int) -> MediaChunk:
        return self._chunks[number]

    def forget(self, number: int) -> None:
        """Drop what the worker no longer holds."""
        self._chunks.pop(number, None)
