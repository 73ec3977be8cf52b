"""The generated models load, compute, and have the property that each claims."""

from pathlib import Path

import pytest

from tests.support.ggufs import (
    MODELS,
    gguf_file,
)


@pytest.mark.parametrize("name", MODELS)
def test_files_are_small_and_always_the_same(gguf_folder: Path, tmp_path: Path, name: str) -> None:
    first, second = gguf_file(gguf_folder, MODELS[name]), gguf_file(tmp_path, MODELS[name])
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 2_000_000
