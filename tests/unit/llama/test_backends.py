"""The version of the library, builds whose backends are libraries of their own, and the devices that models name."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import requires
from pathlib import Path
from typing import Any, cast

import pytest

from server.errors import ConfigError, InternalError, ModelFailed
from server.llama import LIBRARY_VERSION, check_version
from server.llama.library import load_backends
from server.llama.loader import load_by_devices
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec


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


Devices = tuple[str, ...] | None


@dataclass
class FakeWeights:
    """Says in its contexts on what it was loaded."""

    devices: Devices
    closed: bool = False

    def runner(self) -> Any:
        return "generates", self.devices

    def embedding_runner(self) -> Any:
        return "embeds", self.devices

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeLoads:
    """Counts loads; the one with number `failing` fails."""

    failing: int = -1
    made: list[FakeWeights] = field(default_factory=list)

    def __call__(self, spec: ModelSpec, progress: Callable[[float], bool], _first: object = None) -> Weights:
        (devices,) = spec.native.devices
        for fraction in (0.0, 0.5, 1.0):
            if not progress(fraction):
                raise ModelFailed(spec.id, "the load was stopped")
        if len(self.made) == self.failing:
            raise ModelFailed(spec.id, "no memory left")
        self.made.append(FakeWeights(devices))
        return cast(Weights, self.made[-1])


def spec(*devices: Devices) -> ModelSpec:
    return ModelSpec("m", Path("m.gguf"), native=LoadParams(instances=len(devices), devices=devices))


def test_each_distinct_set_is_loaded_once_and_its_instances_get_their_contexts_there() -> None:
    loads = FakeLoads()
    weights: Any = load_by_devices(spec(("B",), ("A",), ("B",), ()), loads, lambda _: True)
    assert [made.devices for made in loads.made] == [("B",), ("A",), ()]
    assert [weights.runner() for _ in range(4)] == [("generates", d) for d in (("B",), ("A",), ("B",), ())]
    assert [weights.embedding_runner() for _ in range(2)] == [("embeds", d) for d in (("B",), ("A",))]


def test_closing_frees_every_load() -> None:
    loads = FakeLoads()
    load_by_devices(spec(("A",), ("B",)), loads, lambda _: True).close()
    assert [made.closed for made in loads.made] == [True, True]
