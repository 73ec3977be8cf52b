"""The GGUF header reader on good, truncated and hostile bytes."""

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.runner_api import Pooling
from server.errors import InternalError, ModelFailed
from server.llama.context.batch import Run
from server.llama.context.padding import n_evaluations, padded_lengths
from server.llama.files.gguf_header import BrokenFileError, GgufHeader, read_header
from server.llama.files.model_file import check_files
from server.llama.files.roles import Roles, pooling_of, roles
from server.llama.sampling.candidates import allowed_tokens
from server.llama.vocab import MIN_PIECE_BYTES, SpecialTexts
from server.pool.spec import LoadParams
from tests.support.fakes import evaluations
from tests.support.ggufs import TinyModel, damaged, gguf_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers")


@pytest.fixture(scope="module")
def good(folder: Path) -> Path:
    return gguf_file(folder, TinyModel(n_vocab=300, n_embd=32))


def test_every_truncation_is_noticed(good: Path, folder: Path) -> None:
    data = good.read_bytes()
    path = folder / "cut.gguf"
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
def test_a_damaged_preamble_is_named(good: Path, folder: Path, at: int, replacement: bytes, expected: str) -> None:
    data = bytearray(good.read_bytes())
    data[at : at + len(replacement)] = replacement
    path = folder / "damaged.gguf"
    path.write_bytes(bytes(data))
    with pytest.raises(BrokenFileError, match=expected):
        read_header(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=8)), max_size=4))
def test_any_damage_is_read_or_refused_but_nothing_else(
    good: Path, folder: Path, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(good.read_bytes())
    for at, replacement in changes:
        data[at : at + len(replacement)] = replacement
    path = folder / "fuzzed.gguf"
    path.write_bytes(bytes(data))
    with suppress(ModelFailed):
        check_files("m", path)


@pytest.mark.parametrize("changed", [b"x", b"\0"], ids=["equal", "cut at a zero"])
def test_a_vocabulary_with_twins_is_refused(good: Path, changed: bytes) -> None:
    """The library would end the process. What is behind a zero is not seen there, and what is empty gets a name."""
    data = good.read_bytes()
    at = {letter: data.index(struct.pack("<Q", 1) + letter) + 8 for letter in (b"x", b"y")}
    file = damaged(good, at[b"y"], changed)
    if changed == b"x":
        with pytest.raises(BrokenFileError, match="has the same token twice"):
            read_header(file)
    else:
        assert read_header(file).lengths["tokenizer.ggml.tokens"] == 300


def test_states_of_another_width_than_the_library_takes_are_refused(folder: Path) -> None:
    path = gguf_file(folder, TinyModel(arch="jamba", n_embd=32))
    data = path.read_bytes()
    key = b"jamba.ssm.inner_size"
    at = data.index(key) + len(key) + 4
    with pytest.raises(ModelFailed, match=r"jamba.ssm.inner_size is 65, not twice the embedding's 32"):
        check_files("m", damaged(path, at, bytes([65])))
    check_files("m", path)


@given(st.sets(st.integers(0, 2047), min_size=1), st.integers(0, 40))
def test_the_ids_are_those_of_the_set_bits_few_or_many(tokens: set[int], n_past_the_end: int) -> None:
    n_vocab = 2048 - n_past_the_end
    bits = np.zeros(2048, np.uint8)
    bits[list(tokens)] = 1
    mask = np.packbits(bits, bitorder="little").tobytes()
    expected = sorted(token for token in tokens if token < n_vocab)
    if expected:
        assert allowed_tokens(mask, n_vocab).tolist() == expected
    else:
        with pytest.raises(InternalError, match="allows no token"):
            allowed_tokens(mask, n_vocab)


def padded(lengths: list[int], evaluation_tokens: float, n_ubatch: int = 512) -> list[int]:
    entries = [Run(seq, 0, [1] * n, n_outputs=1) for seq, n in enumerate(lengths)]
    return padded_lengths(entries, evaluation_tokens, n_ubatch)


@pytest.mark.parametrize(
    ("lengths", "evaluation_tokens", "n_ubatch", "expected"),
    [
        ([5, 6, 5, 4, 6, 6], 9, 512, [6] * 6),
        ([2, 1, 1, 1], 9, 512, [2] * 4),  # one sequence has a draft token
        ([1, 1, 1, 9, 10], 9, 512, [1, 1, 1, 10, 10]),
        ([9, 1, 1, 1], 9, 512, [9, 1, 1, 1]),  # padding would cost more than an evaluation
        ([21, 21, 22, 21, 23, 21, 23, 20], 6, 512, [23] * 8),
        ([5, 6, 5, 4], 0, 512, [5, 6, 5, 4]),
        ([5, 6, 5, 4], 9, 23, [6, 6, 6, 4]),  # 24 tokens do not fit one evaluation
    ],
)
def test_runs_of_similar_length_are_padded(
    lengths: list[int], evaluation_tokens: float, n_ubatch: int, expected: list[int]
) -> None:
    assert padded(lengths, evaluation_tokens, n_ubatch) == expected


def test_a_gap_between_sequences_separates_groups() -> None:
    entries = [Run(seq, 0, [1] * n, n_outputs=1) for seq, n in ((0, 5), (1, 6), (3, 7))]
    assert padded_lengths(entries, 9, 512) == [6, 6, 7]


@given(st.lists(st.integers(1, 40), max_size=12), st.floats(0, 12), st.integers(1, 200))
def test_padding_never_costs_more_than_it_saves(lengths: list[int], evaluation_tokens: float, n_ubatch: int) -> None:
    def cost(each: list[int]) -> float:
        return sum(each) + evaluation_tokens * n_evaluations(each)

    to = padded(lengths, evaluation_tokens, n_ubatch)
    assert all(before <= after for before, after in zip(lengths, to, strict=True))
    assert cost(to) <= cost(lengths) + 1e-6
    assert all(to.count(n) * n <= n_ubatch for n in to if to.count(n) > lengths.count(n))


@given(st.lists(st.integers(1, 40), max_size=12))
def test_evaluations_are_counted_as_the_library_splits_a_batch(lengths: list[int]) -> None:
    assert n_evaluations(lengths) == evaluations(enumerate(lengths), 10**6)


FILL = b"x" * MIN_PIECE_BYTES


def pieces(raw: bytes, *texts: bytes) -> list[bytes]:
    return list(SpecialTexts(texts).pieces(raw))


def test_a_special_text_that_another_overlaps_is_no_place_to_cut() -> None:
    for raw, rival in ((b"<end><", b"><"), (b"<<end>", b"<<"), (b"<end>", b"end"), (b"a<end>b", b"a<end>b")):
        assert pieces(FILL + raw + FILL, b"<end>", rival) in ([FILL + raw + FILL], [FILL + b"a<end>b", FILL])


def test_runs_of_a_text_that_overlaps_itself_are_not_cut() -> None:
    assert pieces(FILL + b"aaa" + FILL, b"aa") == [FILL + b"aaa" + FILL]
    assert pieces(FILL + b"aa" + FILL, b"aa") == [FILL + b"aa", FILL]


@given(st.lists(st.sampled_from([b"<a>", b"<", b">", b"a", FILL]), max_size=40), st.sets(st.binary(max_size=3)))
def test_no_byte_is_lost(parts: list[bytes], texts: set[bytes]) -> None:
    raw = b"".join(parts)
    assert b"".join(pieces(raw, b"<a>", *texts)) == raw


GENERATES, EMBEDS, BOTH = Roles(True, False), Roles(False, True), Roles(True, True)


def header(arch: str = "llama", pooling: int | None = None) -> GgufHeader:
    metadata: dict[str, Any] = {"general.architecture": arch}
    if pooling is not None:
        metadata[f"{arch}.pooling_type"] = pooling
    return GgufHeader(3, metadata, {}, ())


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
def test_what_a_model_is_for(file: GgufHeader, native: dict[str, Any], expected: Roles) -> None:
    assert roles(file, LoadParams(**native)) == expected


def test_the_setting_overrides_the_files_pooling() -> None:
    assert pooling_of(header(pooling=1), LoadParams()) is Pooling.MEAN
    assert pooling_of(header(pooling=1), LoadParams(pooling="cls")) is Pooling.CLS
    assert pooling_of(header(), LoadParams()) is Pooling.NONE
