"""A fake model for a process of its own: what is said to it decides how its process ends."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial

from server.engine.runner_api import BatchEntry
from server.pool.protocols import Loader
from tests.fakes import FakeLoader, FakeRunner

WAITS_AFTER = 8  # tokens of a reply whose prompt says that it waits


class Acting(FakeRunner):
    """``!abort`` in a sequence ends the process as a failed assertion does; ``!die once FILE!`` kills it unless FILE is
    there, which is then made; ``!hang`` never comes back from the step; ``!wait`` stops in the middle of the reply."""

    def __init__(self) -> None:
        super().__init__(on_decode=self._act, n_ctx_seq=512, n_batch=512)

    def _act(self, entries: Sequence[BatchEntry]) -> None:
        for entry in entries:
            said = self._text([*self.cells[entry.seq], *entry.tokens])
            if b"!abort" in said:
                os.abort()
            if b"!hang" in said:
                threading.Event().wait()
            if b"!wait" in said and len(said) - said.index(b"!wait") > 40 + WAITS_AFTER:
                threading.Event().wait()
            if b"!die once " in said:
                path = said.split(b"!die once ")[1].split(b"!")[0]
                if not os.path.exists(path):
                    os.close(os.open(path, os.O_CREAT))
                    os.kill(os.getpid(), signal.SIGKILL)


def make_loader(kind: str) -> Loader:
    """In the process. ``acting``, or ``plain``."""
    return FakeLoader(runner=Acting) if kind == "acting" else FakeLoader()


def in_process(kind: str = "acting") -> Callable[[], Loader]:
    """For `create_app`."""
    return partial(make_loader, kind)
