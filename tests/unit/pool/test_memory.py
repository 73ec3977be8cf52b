"""Parsing of memory budgets, their limits by device, and the share of prompt caches."""

from dataclasses import replace

import pytest

from server.pool.memory import HOST, Amount, Budget, Bytes, Memory, needed, read_budget
from server.pool.spec import ALL_LAYERS, LoadParams
from tests.unit.pool.fakes import spec

GIB = 1 << 30
MEMORY = {HOST: Memory(16 * GIB, 8 * GIB), "CUDA0": Memory(8 * GIB, 6 * GIB)}


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("", Budget()),
        ("80%", Budget(Amount(part=0.8))),
        ("12GiB", Budget(Amount(12 * GIB))),
        ("12 gb", Budget(Amount(12 * GIB))),
        ("512", Budget(Amount(512 << 20))),
        ("1.5G", Budget(Amount(GIB * 3 // 2))),
        ("CPU=50%, CUDA0=6GiB", Budget(None, {"CPU": Amount(part=0.5), "CUDA0": Amount(6 * GIB)})),
        ("90%,CUDA0=6GiB", Budget(Amount(part=0.9), {"CUDA0": Amount(6 * GIB)})),
    ],
)
def test_budget_texts_are_parsed(text: str, budget: Budget) -> None:
    assert read_budget(text) == budget


@pytest.mark.parametrize("text", ["much", "0", "101%", "-5%", "1GiB,2GiB", "CPU=", "5XB"])
def test_invalid_budget_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"should be|names two"):
        read_budget(text)


def test_limits_are_free_memory_unless_the_budget_names_amounts() -> None:
    assert read_budget("").limits(MEMORY) == {HOST: 7 * GIB, "CUDA0": 5 * GIB}
    assert read_budget("50%").limits(MEMORY) == {HOST: 8 * GIB, "CUDA0": 4 * GIB}
    assert read_budget("cuda0=2GiB,50%").limits(MEMORY) == {HOST: 8 * GIB, "CUDA0": 2 * GIB}
    assert read_budget("").limits({HOST: Memory(2 * GIB, GIB)}) == {HOST: GIB * 3 // 4}


def test_device_of_unknown_size_is_limited_only_by_an_absolute_amount() -> None:
    assert read_budget("80%").limits({}) == {}
    assert read_budget("Vulkan0=50%").limits({}) == {}
    assert read_budget("Vulkan0=2GiB").limits({}) == {"Vulkan0": 2 * GIB}


def test_caches_get_the_bytes_that_models_leave() -> None:
    limits = {HOST: 8 * GIB}
    assert Budget().for_caches(limits, {}) == 2 * GIB
    assert Budget().for_caches(limits, {HOST: 7 * GIB}) == GIB
    assert Budget().for_caches(limits, {HOST: 9 * GIB}) == 0
    assert Budget(caches=-1).for_caches(limits, {HOST: GIB}) == 7 * GIB
    assert Budget(caches=100).for_caches(limits, {}) == 100 << 20
    assert Budget(caches=0).for_caches(limits, {}) == 0
    assert (Budget().for_caches({}, {}), Budget(caches=1).for_caches({}, {})) == (-1, 1 << 20)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (LoadParams(), {HOST: 4 * GIB, "CUDA0": 6 * GIB}),
        (LoadParams(n_gpu_layers=ALL_LAYERS), {HOST: GIB, "CUDA0": 9 * GIB}),
        (LoadParams(fit=False), {HOST: GIB, "CUDA0": 6 * GIB}),
    ],
)
def test_layers_that_exceed_a_device_count_as_host_memory(params: LoadParams, expected: dict[str, int]) -> None:
    measured, limits = {HOST: Bytes(GIB), "CUDA0": Bytes(9 * GIB)}, {HOST: 16 * GIB, "CUDA0": 6 * GIB}
    model = replace(spec("m"), native=params)
    assert needed(model, measured, limits) == expected
    assert not any(needed(model, {}, limits).values())
