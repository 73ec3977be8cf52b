"""What a change of the scheduler is judged by: the engine's deciders over a cost model of a GPU.

It is `benchmarks.simulation`, small. The bounds leave about a tenth to the figures of today. Who moves them says why,
with what `python -m benchmarks.simulation` shows at its full size.
"""

import pytest

from benchmarks.simulation.machine import machine
from benchmarks.simulation.policy import SHARED, SLOT_LOCAL, Policy, with_ram
from benchmarks.simulation.run import Seen, Simulation
from server.engine.sequence import Slot

N_SLOTS = 32
TARGET_S = SHARED.target_itl_ms / 1e3


def seen(policy: Policy, n_requests: int = 600) -> Seen:
    simulation = Simulation(policy, N_SLOTS)
    found = simulation.run(n_requests)
    simulation.scheduler.check_integrity()
    return found


@pytest.fixture(scope="module")
def local() -> Seen:
    return seen(SLOT_LOCAL)


@pytest.fixture(scope="module")
def shared() -> Seen:
    return seen(SHARED)


@pytest.fixture(scope="module")
def ram() -> Seen:
    return seen(with_ram(N_SLOTS, is_pinned=True))


def test_most_of_the_prompts_needs_no_computing(local: Seen, shared: Seen, ram: Seen) -> None:
    assert local.hit_rate < 0.1  # slots are too few for the conversations: each evicts another
    assert shared.hit_rate > 0.46
    assert ram.hit_rate > 0.78


def test_first_tokens_come_sooner(local: Seen, shared: Seen, ram: Seen) -> None:
    assert shared.first_token_s(0.99) < 0.75 * local.first_token_s(0.99)
    assert ram.first_token_s(0.99) < 0.33 * local.first_token_s(0.99)
    assert ram.first_token_s(0.5) < 0.05 * local.first_token_s(0.5)


def test_streams_do_not_stand_still(local: Seen, shared: Seen, ram: Seen) -> None:
    # Its sequences are not adjacent, so a step evaluates the graph several times.
    assert local.gap_s(0.99) > 1.1 * TARGET_S
    assert shared.gap_s(0.99) < 1.1 * TARGET_S
    assert ram.gap_s(0.99) < 1.4 * TARGET_S  # with states that are moved out of the cells and back
    assert max(s.gap_s(1.0) for s in (shared, ram)) < 2 * TARGET_S


def test_more_is_answered_in_the_same_time(local: Seen, shared: Seen, ram: Seen) -> None:
    rates = [len(s.first_token) / s.simulated_s for s in (local, shared, ram)]
    assert rates[1] > 1.25 * rates[0]
    assert rates[2] > 1.55 * rates[0]


def test_a_ram_tier_whose_moves_cost_more_than_computing_is_not_used() -> None:
    """Four cards compute a token in a tenth of the time that pageable memory takes to save and load it."""
    rates = []
    for policy in (SHARED, with_ram(256)):
        found = Simulation(policy, 256).run(1000)
        rates.append(len(found.first_token) / found.simulated_s)
    assert rates[1] > 0.97 * rates[0]


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = seen(with_ram(N_SLOTS), 80), seen(with_ram(N_SLOTS), 80)
    assert first.first_token == second.first_token
    assert first.gap == second.gap


def test_clients_with_one_request_each_do_not_wait_for_one_with_hundreds() -> None:
    people = 8 * N_SLOTS
    modest = range(people - 8, people)

    def client(number: int) -> str:
        return f"client {number}" if number in modest else "flood"

    told_apart = Simulation(SHARED, N_SLOTS, people=8, client=client).run(400)
    in_one_queue = Simulation(SHARED, N_SLOTS, people=8).run(400)
    assert told_apart.first_token_s(0.9, modest) < 0.1 * in_one_queue.first_token_s(0.9, modest)
    assert told_apart.first_token_s(0.9) < 1.15 * in_one_queue.first_token_s(0.9)


def test_a_disk_behind_a_small_ram_is_read_and_costs_no_first_token() -> None:
    small = Policy("small RAM", ram_mib=16384, is_pinned=True)
    with_files = Policy("small RAM, disk", ram_mib=16384, disk_mib=64 << 10, is_pinned=True)
    alone, behind = Simulation(small, 16, 3).run(600), Simulation(with_files, 16, 3).run(600)
    assert alone.n_disk_reads == alone.n_disk_hits == 0
    assert 0 < behind.n_disk_hits <= behind.n_disk_reads
    assert behind.hit_rate > 0.98 * alone.hit_rate  # on such a card, computing is mostly quicker than a file


def test_a_copy_costs_the_whole_stream_whatever_it_holds() -> None:
    full, half = machine(16), machine(32)
    for one in (full, half):
        one.slots = [Slot(id=i, tokens=[1] * 20) for i in range(one.info.n_seq)]
        one.decode([], [])
        alone_s = one.now
        one.seq_copy(0, 1)
        one.decode([], [])
        assert one.now - 2 * alone_s == pytest.approx(one.info.copy_s) == pytest.approx(one.moved_s)
    assert full.info.copy_s == pytest.approx(2 * half.info.copy_s)  # with twice the cells in each
    assert full.gpu.state_s(20, full.gpu.save) < full.info.copy_s  # the state of what it holds is far less
