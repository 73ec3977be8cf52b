"""Bytes that are written once, where they stay: a copy of gigabytes would hold the GIL for as long as it takes."""

import ctypes

# As CPython's C API allows: a bytes object may be written to before anybody else sees it.
_uninitialized = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def new_bytes(n: int) -> tuple[bytes, memoryview]:
    """`n` bytes, and a view to write all of them through before anybody sees them; it is valid as long as they are.

    Raises MemoryError.
    """
    if not n:
        return b"", memoryview(bytearray())
    made: bytes = _uninitialized(None, n)
    return made, memoryview((ctypes.c_ubyte * n).from_address(_address(made))).cast("B")
