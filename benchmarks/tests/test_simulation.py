"""A small `benchmarks.simulation`: the scheduler, placement and caches of the engine over a cost model of a GPU.

The bounds leave a margin of about 10% to the current figures. A commit that changes a bound gives the reason and the
figures of the full simulation, `python -m benchmarks.simulation`.
"""

import pytest

from benchmarks.simulation.machine import machine
from benchmarks.simulation.policy import SHARED, SLOT_LOCAL, Policy, with_ram
from benchmarks.simulation.run import Results, Simulation
from server.engine.sequence import Slot

N_SLOTS = 32
TARGET_S = SHARED.target_itl_ms / 1e3


def simulate(policy: Policy, n_requests: int = 600) -> Results:
    simulation = Simulation(policy, N_SLOTS)
    results = simulation.run(n_requests)
    simulation.scheduler.check_integrity()
    return results


@pytest.fixture(scope="module")
def local() -> Results:
    return simulate(SLOT_LOCAL)


@pytest.fixture(scope="module")
def shared() -> Results:
    return simulate(SHARED)


@pytest.fixture(scope="module")
def ram() -> Results:
    return simulate(with_ram(N_SLOTS, is_pinned=True))


def test_shared_cache_and_ram_tier_raise_the_hit_rate(local: Results, shared: Results, ram: Results) -> None:
    assert local.hit_rate < 0.1  # fewer slots than conversations, so they evict each other
    assert shared.hit_rate > 0.46
    assert ram.hit_rate > 0.78


def test_shared_cache_and_ram_tier_lower_the_time_to_first_token(local: Results, shared: Results, ram: Results) -> None:
    assert shared.first_token_s(0.99) < 0.75 * local.first_token_s(0.99)
    assert ram.first_token_s(0.99) < 0.33 * local.first_token_s(0.99)
    assert ram.first_token_s(0.5) < 0.05 * local.first_token_s(0.5)


def test_inter_token_latency_stays_near_its_target(local: Results, shared: Results, ram: Results) -> None:
    # The sequences of `local` are not adjacent, so a step evaluates the graph several times.
    assert local.gap_s(0.99) > 1.1 * TARGET_S
    assert shared.gap_s(0.99) < 1.1 * TARGET_S
    assert ram.gap_s(0.99) < 1.4 * TARGET_S  # with states that are offloaded and loaded
    assert max(s.gap_s(1.0) for s in (shared, ram)) < 2 * TARGET_S


def test_shared_cache_and_ram_tier_raise_the_throughput(local: Results, shared: Results, ram: Results) -> None:
    rates = [len(s.first_token) / s.simulated_s for s in (local, shared, ram)]
    assert rates[1] > 1.25 * rates[0]
    assert rates[2] > 1.55 * rates[0]


def test_ram_tier_is_not_used_if_moves_cost_more_than_prefill() -> None:
    """Four GPUs prefill a token in a tenth of the time that pageable memory takes to save and load it."""
    rates = []
    for policy in (SHARED, with_ram(256)):
        results = Simulation(policy, 256).run(1000)
        rates.append(len(results.first_token) / results.simulated_s)
    assert rates[1] > 0.97 * rates[0]


def test_runs_with_the_same_seed_are_equal() -> None:
    first, second = simulate(with_ram(N_SLOTS), 80), simulate(with_ram(N_SLOTS), 80)
    assert first.first_token == second.first_token
    assert first.gap == second.gap


def test_clients_with_few_requests_do_not_wait_for_one_with_hundreds() -> None:
    people = 8 * N_SLOTS
    modest = range(people - 8, people)

    def client(number: int) -> str:
        return f"client {number}" if number in modest else "flood"

    fair = Simulation(SHARED, N_SLOTS, people=8, client=client).run(400)
    one_client = Simulation(SHARED, N_SLOTS, people=8).run(400)
    assert fair.first_token_s(0.9, modest) < 0.1 * one_client.first_token_s(0.9, modest)
    assert fair.first_token_s(0.9) < 1.15 * one_client.first_token_s(0.9)


def test_disk_tier_of_a_small_ram_tier_is_read_without_lowering_the_hit_rate() -> None:
    small = Policy("small RAM", ram_mib=16384, is_pinned=True)
    with_files = Policy("small RAM, disk", ram_mib=16384, disk_mib=64 << 10, is_pinned=True)
    without_disk, with_disk = Simulation(small, 16, 3).run(600), Simulation(with_files, 16, 3).run(600)
    assert without_disk.n_disk_reads == without_disk.n_disk_hits == 0
    assert 0 < with_disk.n_disk_hits <= with_disk.n_disk_reads
    assert with_disk.hit_rate > 0.98 * without_disk.hit_rate  # on such a GPU, prefill is mostly faster than a file


def test_copy_costs_a_whole_kv_stream_for_any_number_of_tokens() -> None:
    full, half = machine(16), machine(32)
    for one in (full, half):
        one.slots = [Slot(id=i, tokens=[1] * 20) for i in range(one.info.n_seq)]
        one.decode([], [])
        alone_s = one.now
        one.seq_copy(0, 1)
        one.decode([], [])
        assert one.now - 2 * alone_s == pytest.approx(one.info.copy_s) == pytest.approx(one.moved_s)
    assert full.info.copy_s == pytest.approx(2 * half.info.copy_s)  # with twice the cells in each
    assert full.gpu.state_s(20, full.gpu.save) < full.info.copy_s  # saving only the used cells is far cheaper
