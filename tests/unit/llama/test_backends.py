"""The library: version check, separate backend libraries, collected error lines. Uses a fake library."""

import ctypes
from importlib.metadata import requires
from typing import Any, cast

import pytest

from server.errors import ConfigError, InternalError
from server.llama import LIBRARY_VERSION, check_version
from server.llama.library import collect_errors, load_backends, log_callback


def test_accepts_only_the_pinned_library_version() -> None:
    assert f"llama-cpp-python=={LIBRARY_VERSION}" in (requires("llamapool") or [])
    check_version(LIBRARY_VERSION)
    check_version(f"{LIBRARY_VERSION}+cu124")
    for other in ("0.3.35", "0.3.37", f"{LIBRARY_VERSION}.post1"):
        with pytest.raises(ConfigError, match=f"{other} is installed.* pip install llama-cpp-python=="):
            check_version(other)


class FakeLibrary:
    """libllama.so with `before` built-in backends, and `after` backends after a folder was searched."""

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
def test_loads_backends_once_from_the_library_folder_if_none_is_built_in(before: int, searched: list[bytes]) -> None:
    library = FakeLibrary(before, 1)
    for _ in range(2):
        load_backends(cast(ctypes.CDLL, library))
    assert library.searched == searched


def test_a_missing_backend_raises_an_error_with_the_searched_folder() -> None:
    with pytest.raises(InternalError, match="/somewhere/llama_cpp/lib contains no backend"):
        load_backends(cast(ctypes.CDLL, FakeLibrary(0, 0)))


def test_a_nested_collect_errors_does_not_end_the_outer_one() -> None:
    """Encoding an image collects errors around its preprocessing, which collects its own."""
    with collect_errors(quiet=True) as outer:
        with collect_errors(quiet=True) as inner:
            log_callback(4, b"of preprocessing\n", None)
        log_callback(4, b"of encoding\n", None)
    log_callback(4, b"not collected\n", None)
    assert (outer, inner) == (["of encoding"], ["of preprocessing"])
