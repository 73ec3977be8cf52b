"""Native models, which entries that load the same files in the same way share."""

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager

from server.errors import Unavailable
from server.llama.files.model_file import ModelFiles
from server.llama.library import C
from server.pool.spec import LoadParams

PAUSE_S = 60.0
"""Seconds to wait for the step of a context before it counts as hanging."""


class NativeModel:
    """A native model. Hold ``making`` while a context over it is made, and add the lock that the context holds while it
    decodes to ``decoding``.
    """

    def __init__(self, key: Hashable, files: ModelFiles) -> None:
        self.key = key
        self.files = files
        self.pointer: int | None = None  # not loaded yet
        self.n_users = 0
        self.making = threading.Lock()
        self.decoding: set[threading.Lock] = set()

    @property
    def loaded(self) -> int:
        """The library's pointer."""
        assert self.pointer is not None
        return self.pointer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no context decode and none be made meanwhile: both read the model's list of adapters without a lock
        (llama-context.cpp, graph_max_nodes). Waits for steps that run. Raises `Unavailable` if one hangs.
        """
        with self.making, ExitStack() as held:
            for lock in self.decoding:
                if not lock.acquire(timeout=PAUSE_S):
                    raise Unavailable("the model's adapters cannot be changed: one of its steps does not end; retry")
                held.callback(lock.release)
            yield


class NativeModels:
    """The native models of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[Hashable, NativeModel] = {}

    def holds(self, files: ModelFiles, native: LoadParams) -> bool:
        """Return whether these weights are loaded, or being loaded."""
        with self._lock:
            return _key(files, native) in self._models

    def open(self, files: ModelFiles, native: LoadParams, load: Callable[[], int]) -> NativeModel:
        """Return the model that is loaded already, or that `load` loads. Waits while another thread does that."""
        key = _key(files, native)
        with self._lock:
            model = self._models.setdefault(key, NativeModel(key, files))
            model.n_users += 1
        try:
            with model.making:
                if model.pointer is None:
                    model.pointer = load()
        except BaseException:
            self.close(model)
            raise
        return model

    def close(self, model: NativeModel) -> None:
        """Free a model with its last user."""
        with self._lock:
            model.n_users -= 1
            if model.n_users:
                return
            del self._models[model.key]
        if model.pointer is not None:
            C.llama_model_free(model.pointer)


def _key(files: ModelFiles, native: LoadParams) -> Hashable:
    """Another file of the same name is another model."""
    found = [os.stat(path) for path, _ in files.parts]
    return native.weights, tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
