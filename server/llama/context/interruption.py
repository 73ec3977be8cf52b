"""Ends a decode early, from another thread.

The library asks a callback between the operations of a graph whether to abort (CPU only). A Python callback would take
the GIL hundreds of times per step while all compute threads wait. So the callback is C's `strlen`, and its argument is
a string that is empty or not.
"""

import ctypes
import sys
import threading

from server.llama.library import C


class Interruption:
    """The abort callback of one context. ``allow`` is called by the thread that decodes."""

    def __init__(self, context: int) -> None:
        self._text = ctypes.create_string_buffer(2)
        self._is_allowed = False
        self._lock = threading.Lock()
        if sys.platform != "win32":  # there, strlen is not among the process's own symbols
            strlen = ctypes.cast(ctypes.CDLL(None).strlen, C.ggml_abort_callback)
            C.llama_set_abort_callback(context, strlen, ctypes.addressof(self._text))

    def allow(self, *, wanted: bool) -> None:
        """Allow or forbid interruption, and withdraw an earlier request."""
        with self._lock:
            self._is_allowed = wanted
            self._text[0] = b"\0"

    def request(self) -> None:
        """Interrupt the decode if that is allowed now. Thread-safe."""
        with self._lock:
            if self._is_allowed:
                self._text[0] = b"\1"
