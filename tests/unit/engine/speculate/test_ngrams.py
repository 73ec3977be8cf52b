"""Guesses from the text by llama-server's kinds."""

from pathlib import Path

import numpy as np
import pytest

from server.engine.params import EngineParams
from server.engine.speculate import lookup
from server.engine.speculate.lookup import HashTable, NgramCache, NgramMap, NgramMod, NgramSimple, read_counts, sources
from server.errors import ConfigError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run, ticking

KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
RUN = list(range(10, 40))


def test_simple_goes_on_from_the_last_place_with_as_many_tokens_as_must_match() -> None:
    source = NgramSimple(3, 5, 256)
    source.extend([*RUN, 1, 2, *RUN[:6], 70, 71, 72, 73, 3, *RUN[3:6]])
    assert source.propose(9) == [70, 71, 72, 73, 3]
    assert source.propose(2) == [70, 71]
    short = NgramSimple(3, 5, 256)
    short.extend([*range(100, 120), *RUN[:3], *RUN[:3]])
    assert short.propose(9) == []


def test_map_k_goes_no_further_than_it_was_right_before() -> None:
    source = NgramMap(3, 6)
    source.extend([*RUN, 1, 2, 3, *RUN[:3]])
    assert source.propose(9) == RUN[3:9]
    source.record_accepted(6, 2)
    assert source.propose(9) == RUN[3:5]
    source.record_accepted(2, 2)
    assert source.propose(9) == RUN[3:5]


def test_map_k4v_wants_one_continuation_twice_as_often_as_all_others() -> None:
    usual, other = [1, 2, 3, 50, 51], [1, 2, 3, 60, 61]

    def propose(*parts: list[int]) -> list[int]:
        source = NgramMap(3, 2, min_hits=1)
        source.extend([*RUN, *(token for i, part in enumerate(parts) for token in (*part, 200 + i)), 99, 98, 1, 2, 3])
        return source.propose(9)

    assert propose(usual, other) == []
    assert propose(usual, usual, other) == [50, 51]
    assert propose(usual, other, usual) == [50, 51]


def test_map_k4v_wants_to_have_met_the_tokens_before() -> None:
    source = NgramMap(3, 4, min_hits=2)
    source.extend([*RUN, 1, 2, 3, *RUN[:3]])
    assert source.propose(9) == []
    assert source.propose(9) == RUN[3:7]


def test_mod_knows_the_texts_of_other_requests() -> None:
    pool = HashTable(4)
    first, second = NgramMod(pool, 3, 6), NgramMod(pool, 3, 6)
    first.extend(RUN)
    while first.catch_up():
        pass
    second.extend([7, *RUN[:4]])
    assert second.propose(20) == RUN[4:10]
    second.extend(RUN[4:24])
    assert second.propose(20) == RUN[24:30]
    second.extend(RUN[24:29])
    assert second.propose(20) == []  # fewer than three
    for _ in range(lookup._LOW_TIMES):
        second.record_accepted(6, 1)
    third = NgramMod(pool, 3, 6)
    third.extend(RUN[:4])
    assert third.propose(20) == []


def test_the_cache_says_what_followed_often_and_clearly_enough() -> None:
    source = NgramCache({}, {})
    source.extend([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 9, 1, 2])
    assert source.propose(3) == [3, 4, 5]
    assert len(source.propose(99)) == 8
    doubtful = NgramCache({}, {})
    doubtful.extend([1, 5, 1, 6, 1, 7, 1])
    assert doubtful.propose(3) == []


def test_files_help_where_the_text_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "counts.bin"
    np.array([8, 9, -1, -1, 2, 10, 5, 11, 1, 9, 10, -1, -1, 1, 12, 3], "<i4").tofile(file)
    counts = read_counts(file)
    assert counts == {(8, 9): {10: 5, 11: 1}, (9, 10): {12: 3}}
    for source in (NgramCache(counts, {}), NgramCache({}, counts)):
        source.extend([1, 2, 8, 9])
        assert source.propose(9) == [10, 12]


@pytest.mark.parametrize("numbers", [[1, -1, -1, -1, 2, 5, 1], [1, 2], [-1, -1, -1, -1, 1, 5, 5], [1, 2, 3, 4, 0]])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, numbers: list[int]) -> None:
    file = tmp_path / "counts.bin"
    np.array(numbers, "<i4").tofile(file)
    with pytest.raises(ConfigError, match=r"counts\.bin is damaged"):
        sources(EngineParams(spec_type="ngram-cache", lookup_cache_dynamic=file))


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_saves_steps_and_changes_no_text(kind: str) -> None:
    verse = "row row row your boat, gently down the stream, merrily merrily " * 6
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": verse})
    small = {"spec_ngram_mod_n_match": 12, "spec_ngram_mod_n_min": 4, "spec_type": kind}
    async with engine_over(runner, clock=ticking(), **small) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=300))
    assert reply.text == verse[:300]
    assert reply.finished[0].timings.draft_n_accepted > 60
    assert len(runner.batches) < 260
