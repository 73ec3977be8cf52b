"""What was made not long ago, made once: also when several threads ask for the same at the same time."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from server.errors import InvalidRequest

T = TypeVar("T")


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock = Lock()
        self.made: list[T] = []
        self.refused: InvalidRequest | None = None

    def get(self, make: Callable[[], T]) -> T:
        with self.lock:
            if self.refused is not None:
                raise InvalidRequest(self.refused.message, self.refused.param)
            if not self.made:
                try:
                    self.made.append(make())
                except InvalidRequest as error:
                    self.refused = error
                    raise
            return self.made[0]


class NewestValues(Generic[T]):
    """The `size` values that were asked for last. A refusal is remembered like a value. For any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of `key`, made by `make` where it is not there."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return entry.get(make)
