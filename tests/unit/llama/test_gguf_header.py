"""GGUF headers: rejection of broken files, and a model's roles (generation, embedding), with generated files."""

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.runner_api import Pooling
from server.errors import ModelFailed
from server.llama.files.gguf_header import BrokenFileError, GgufHeader, read_header
from server.llama.files.model_file import check_files
from server.llama.files.roles import embeds, generates, pooling_of
from server.pool.spec import LoadParams
from tests.support.ggufs import TinyModel, damaged, gguf_file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("headers"), TinyModel(n_vocab=300, n_embd=32))


def test_rejects_every_truncation(good: Path) -> None:
    data = good.read_bytes()
    path = good.with_name("truncated.gguf")
    for length in {*range(0, 400, 7), *range(400, len(data), 997), len(data) - 40}:
        path.write_bytes(data[:length])
        with pytest.raises(BrokenFileError):
            read_header(path)


@pytest.mark.parametrize(
    ("at", "replacement", "expected"),
    [
        (0, b"GGML", "not a GGUF"),
        (4, b"\x01\0\0\0", "version 1"),
        (4, b"\0\0\0\x03", "byte order"),
        (8, b"\xff" * 8, "promises"),
        (16, b"\xff" * 8, "promises"),
        (24, b"\xff" * 8, "truncated"),
    ],
)
def test_rejects_a_damaged_preamble(good: Path, at: int, replacement: bytes, expected: str) -> None:
    with pytest.raises(BrokenFileError, match=expected):
        read_header(damaged(good, at, replacement))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=8)), max_size=4))
def test_random_damage_raises_nothing_but_model_failed(good: Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(good.read_bytes())
    for at, replacement in changes:
        data[at : at + len(replacement)] = replacement
    path = good.with_name("fuzzed.gguf")
    path.write_bytes(bytes(data))
    with suppress(ModelFailed):
        check_files("m", path)


def test_rejects_a_vocabulary_with_the_same_token_twice(good: Path) -> None:
    """The library would abort. It reads a token up to its first zero byte, and renames empty tokens."""
    at = good.read_bytes().index(struct.pack("<Q", 1) + b"y") + 8
    with pytest.raises(BrokenFileError, match="has the same token twice"):
        read_header(damaged(good, at, b"x"))
    assert read_header(damaged(good, at, b"\0")).lengths["tokenizer.ggml.tokens"] == 300


GENERATES, EMBEDS, BOTH = (True, False), (False, True), (True, True)  # (generates, embeds)


def header(arch: str = "llama", pooling: int | None = None) -> GgufHeader:
    metadata: dict[str, Any] = {"general.architecture": arch}
    if pooling is not None:
        metadata[f"{arch}.pooling_type"] = pooling
    return GgufHeader(metadata, {}, ())


@pytest.mark.parametrize(
    ("file", "native", "expected"),
    [
        (header(), {}, GENERATES),
        (header(pooling=0), {}, GENERATES),
        (header("bert"), {}, EMBEDS),
        (header("bert"), {"embedding": False}, EMBEDS),
        (header(pooling=1), {}, EMBEDS),
        (header(pooling=3), {"embedding": True}, EMBEDS),
        (header(pooling=3), {"embedding": False}, GENERATES),
        (header(), {"embedding": True}, BOTH),
        (header(), {"pooling": "mean"}, BOTH),
        (header(), {"embedding": True, "pooling": "rank"}, EMBEDS),
    ],
)
def test_roles_depend_on_the_file_and_the_settings(
    file: GgufHeader, native: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    params = LoadParams(**native)
    assert (generates(file, params), embeds(file, params)) == expected


def test_the_pooling_setting_overrides_the_file() -> None:
    assert pooling_of(header(pooling=1), LoadParams()) is Pooling.MEAN
    assert pooling_of(header(pooling=1), LoadParams(pooling="cls")) is Pooling.CLS
    assert pooling_of(header(), LoadParams()) is Pooling.NONE
