"""The version of the library, and builds whose backends are libraries of their own."""

import ctypes
from importlib.metadata import requires
from typing import Any, cast

import pytest

from server.errors import ConfigError, InternalError
from server.llama import LIBRARY_VERSION, check_version
from server.llama.library import collect_errors, load_backends, log_callback


def test_only_the_pinned_version_of_the_library_is_used() -> None:
    assert f"llama-cpp-python=={LIBRARY_VERSION}" in (requires("llamapool") or [])
    check_version(LIBRARY_VERSION)
    check_version(f"{LIBRARY_VERSION}+cu124")
    for other in ("0.3.35", "0.3.37", f"{LIBRARY_VERSION}.post1"):
        with pytest.raises(ConfigError, match=f"{other} is installed.* pip install llama-cpp-python=="):
            check_version(other)


class _Library:
    """Stands in for libllama.so: `before` backends are built in, `after` are there once a folder was searched."""

    _name = "/somewhere/llama_cpp/lib/libllama.so"

    def __init__(self, before: int, after: int) -> None:
        self.count, self.after = before, after
        self.searched: list[bytes] = []

    def __getitem__(self, name: str) -> Any:
        def load(folder: bytes) -> None:
            self.searched.append(folder)
            self.count = self.after

        functions: dict[str, Any] = {"ggml_backend_reg_count": lambda: self.count}
        return functions.get(name, load)


@pytest.mark.parametrize(("before", "searched"), [(0, [b"/somewhere/llama_cpp/lib"]), (2, [])])
def test_backends_that_are_not_built_in_are_loaded_once_from_the_folder_of_the_bindings(
    before: int, searched: list[bytes]
) -> None:
    library = _Library(before, 1)
    for _ in range(2):
        load_backends(cast(ctypes.CDLL, library))
    assert library.searched == searched


def test_no_backend_is_an_error_that_names_the_folder() -> None:
    with pytest.raises(InternalError, match="/somewhere/llama_cpp/lib contains no backend"):
        load_backends(cast(ctypes.CDLL, _Library(0, 0)))


def test_errors_are_collected_after_a_call_within_that_collects_its_own() -> None:
    """As of a medium that is preprocessed before it is encoded."""
    with collect_errors(quiet=True) as errors:
        with collect_errors(quiet=True) as own:
            log_callback(4, b"of preprocessing\n", None)
        log_callback(4, b"of encoding\n", None)
    log_callback(4, b"of nobody\n", None)
    assert (errors, own) == (["of encoding"], ["of preprocessing"])
