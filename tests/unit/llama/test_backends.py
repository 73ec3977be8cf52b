"""Builds of llama.cpp whose backends are libraries of their own: they are loaded from the bindings' folder."""

import ctypes
from typing import Any, cast

import pytest

from server.errors import InternalError
from server.llama.library import load_backends


class _Library:
    """Stands in for libllama.so: `before` backends are built in, `after` are there once a folder was searched."""

    _name = "/somewhere/llama_cpp/lib/libllama.so"

    def __init__(self, before: int, after: int) -> None:
        self.count, self.after = before, after
        self.searched: list[bytes] = []

    def __getitem__(self, name: str) -> Any:
        functions: dict[str, Any] = {
            "ggml_backend_reg_count": self._count,
            "ggml_backend_load_all_from_path": self._load,
        }

        def function(*args: Any) -> Any:
            return functions[name](*args)

        return function

    def _count(self) -> int:
        return self.count

    def _load(self, folder: bytes) -> None:
        self.searched.append(folder)
        self.count = self.after


def test_backends_are_loaded_from_the_folder_of_the_bindings() -> None:
    library = _Library(0, 1)
    load_backends(cast(ctypes.CDLL, library))
    load_backends(cast(ctypes.CDLL, library))
    assert library.searched == [b"/somewhere/llama_cpp/lib"]


def test_a_build_that_contains_its_backends_searches_nowhere() -> None:
    library = _Library(2, 0)
    load_backends(cast(ctypes.CDLL, library))
    assert library.searched == []


def test_no_backend_is_an_error_that_names_the_folder() -> None:
    with pytest.raises(InternalError, match="/somewhere/llama_cpp/lib contains no backend"):
        load_backends(cast(ctypes.CDLL, _Library(0, 0)))
