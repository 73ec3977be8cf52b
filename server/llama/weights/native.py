"""A native model, which models of the same files with the same load parameters share."""

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager

from server.errors import Unavailable
from server.llama.files.model_file import ModelFiles
from server.pool.spec import LoadParams

PAUSE_S = 60.0
"""Seconds to wait for the step of a context before it counts as hanging."""


class NativeModel:
    """A native model and the locks of its contexts. Hold ``making`` while you create a context of it, and add the lock
    that the context holds during decodes to ``decoding``. ``n_users``: models that share it.
    """

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.pointer = 0  # 0: not loaded yet
        self.n_users = 0
        self.making = threading.Lock()
        self.decoding: set[threading.Lock] = set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Block decodes and the creation of contexts, which read the model's list of adapters without a lock
        (llama-context.cpp, graph_max_nodes). Waits for running decodes. Raises `Unavailable` if one hangs.
        """
        with self.making, ExitStack() as held:
            for lock in self.decoding:
                if not lock.acquire(timeout=PAUSE_S):
                    raise Unavailable("the model's adapters cannot be changed: one of its steps does not end; retry")
                held.callback(lock.release)
            yield


def identity(files: ModelFiles, native: LoadParams) -> Hashable:
    """Return a key that is equal for the same weights, and differs after a file was replaced."""
    stats = [os.stat(path) for path, _ in files.parts]
    return native.weights, tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in stats)
