"""Values of megabytes are sent besides a message's pickle. Inside it, they would be copied with the GIL held on both
event loops: a slot state of a gigabyte would stall every stream for seconds. Pickle protocol 5 passes their buffers
instead; `Channel` sends them in parts.
"""

import io
import pickle
from dataclasses import fields
from typing import Any, TypeAlias

from server.engine.kv.state import Checkpoint, SlotState
from server.media.bitmap import Bitmap

Pieces: TypeAlias = list[bytes | memoryview]
"""A message: its pickle, then the buffers that the pickle refers to, in order."""
_LONG = (Bitmap, SlotState, Checkpoint)  # have fields of megabytes
LONG_BYTES = 1 << 16


class OutOfBand(pickle.Pickler):
    """A pickler that leaves the long values of slots and media out of the pickle."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._long: list[memoryview] = []
        super().__init__(
            self._file, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda buffer: self._long.append(buffer.raw())
        )

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object with long values is pickled."""
        kind = type(obj)
        if kind in _LONG:
            return kind, tuple(beside(getattr(obj, field.name)) for field in fields(obj))
        return NotImplemented

    def pieces(self, message: object) -> Pieces:
        """Return `message` as it is sent; once."""
        self.dump(message)
        return [self._file.getvalue(), *self._long]


def beside(value: object) -> object:
    """Return `value` as a part of a message: long bytes stay out of the pickle."""
    return pickle.PickleBuffer(value) if isinstance(value, bytes) and len(value) > LONG_BYTES else value
