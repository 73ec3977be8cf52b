"""Media that the server has decoded before. A worker process gets a description; pixels or samples are decoded again
and sent only if it has no embeddings of them.
"""

from collections.abc import Callable

from server.errors import InternalError
from server.media.bitmap import Bitmap


class MediaHandles:
    """In the server: media that a worker may request by number until it releases them."""

    def __init__(self) -> None:
        self._bitmaps: dict[int, Bitmap] = {}
        self._n = 0

    def __len__(self) -> int:
        return len(self._bitmaps)

    def __getitem__(self, number: int) -> Bitmap:
        """Raises `InternalError` for an unknown number."""
        found = self._bitmaps.get(number)
        if found is None:
            raise InternalError(f"no medium is lent as number {number}")
        return found

    def add(self, bitmap: Bitmap) -> int:
        """Its number."""
        self._n += 1
        self._bitmaps[self._n] = bitmap
        return self._n

    def given_back(self, number: int) -> None:
        """Nothing in the process can ask for it any more."""
        self._bitmaps.pop(number, None)


class RemoteBitmap:
    """In the worker: a bitmap whose pixels are fetched from the server on demand. `ask` blocks; `give_back` is called
    when nothing refers to it.
    """

    __slots__ = ("_ask", "_give_back", "_number")

    def __init__(self, number: int, ask: Callable[[int], bytes], give_back: Callable[[int], None]) -> None:
        self._number, self._ask, self._give_back = number, ask, give_back

    def __call__(self) -> bytes:
        """Return the pixels or samples. Raises what decoding raised."""
        return self._ask(self._number)

    def __del__(self) -> None:
        self._give_back(self._number)
