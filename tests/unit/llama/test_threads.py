"""The number of compute threads, alone and beside other servers."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.params import EngineParams
from server.errors import ModelFailed
from server.llama import threads
from server.llama.threads import INTERVAL_S, ComputeThreads, Use, measured
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from server.sandbox import memory


def test_a_given_number_is_taken_and_automatic_is_within_what_the_process_may_use() -> None:
    assert (threads.n_threads(3), threads.n_threads(10_000)) == (3, 512)
    assert 1 <= threads.n_threads(-1) <= threads.usable_cpus() == threads.n_threads(0)


@pytest.mark.parametrize(
    ("text", "above", "expected"),
    [
        ("150000 100000", "max 100000", 2),
        ("max 100000", "max 100000", 64),
        ("", "", 64),
        ("50000 100000", "", 1),
        ("max 100000", "400000 100000", 4),
        ("800000 100000", "400000 100000", 4),
    ],
)
def test_the_quotas_of_its_control_groups_bound_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, above: str, expected: int
) -> None:
    service = tmp_path / "groups" / "system.slice" / "llamapool.service"
    service.mkdir(parents=True)
    (service / "cpu.max").write_text(text)
    (service.parent / "cpu.max").write_text(above)
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/system.slice/llamapool.service\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert threads.usable_cpus() == expected


@pytest.mark.parametrize(("per_core", "performance_cores", "expected"), [(2, None, 4), (1, "0-2,5,6\n", 5)])
def test_hardware_threads_of_one_core_count_once_and_only_those_of_performance_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, per_core: int, performance_cores: str | None, expected: int
) -> None:
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings").write_text(f"core {cpu // per_core}")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    if performance_cores is not None:
        (tmp_path / "cpus").write_text(performance_cores)
        monkeypatch.setattr(threads, "_PERFORMANCE_CORES", tmp_path / "cpus")
    assert threads.physical_cores() == expected


def spec(*cpus: set[int], prio: int = 0) -> ModelSpec:
    return ModelSpec("m", Path("m.gguf"), engine=EngineParams(cpus=tuple(map(frozenset, cpus)), prio=prio))


@pytest.mark.parametrize(
    ("cpus", "instances", "n_threads", "expected"),
    [
        *(((), n, -1, expected) for n, expected in ((1, -1), (2, 4), (3, 2), (9, 1))),
        ((), 2, 8, 8),  # a configured number
        (({0, 1, 2},), 1, 5, 5),
        (({0, 1, 2, 3},), 2, -1, 2),  # both on the same CPUs
        (({0, 1, 2, 3}, {4, 5, 6}), 2, -1, 3),
        (({0, 1, 2}, {3, 4, 511}), 2, -1, 2),
    ],
)
def test_instances_divide_the_cores_or_have_a_thread_for_each_of_their_cpus(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[set[int], ...], instances: int, n_threads: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(threads, "usable_cpus", lambda: 8)
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    native = LoadParams(n_threads=n_threads, instances=instances)
    one = spec(*cpus)
    bound = threads.bound(replace(one, native=native, draft=DraftFile(one.path, native)))
    assert bound.draft is not None
    assert bound.draft.native.n_threads == bound.native.n_threads == expected


def test_what_a_system_cannot_do_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    with pytest.raises(ModelFailed, match="an instance has no CPU, there are only 0, 1"):
        threads.bound(spec({0, 1}, {2, 3}))
    monkeypatch.setattr(threads, "PRIORITIES_BY_THREAD", False)
    with pytest.raises(ModelFailed, match="prio: this system gives no priorities to threads"):
        threads.bound(spec(prio=-1))
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ModelFailed, match="can't bind threads"):
        threads.bound(spec({0}))


def test_a_lower_priority_is_always_allowed() -> None:
    assert threads.bound(spec(prio=-1)) == spec(prio=-1)


@pytest.mark.parametrize(("prio", "nice"), [(-1, 5), (1, -5), (2, -10), (3, -20)])
def test_a_priority_that_the_system_refuses_ends_the_load(
    monkeypatch: pytest.MonkeyPatch, prio: int, nice: int
) -> None:
    def refuse(_which: int, _who: int, value: int) -> None:
        assert value == max(nice, os.getpriority(os.PRIO_PROCESS, 0) if prio < 0 else nice)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    with pytest.raises(ModelFailed, match=f"prio {prio}: the system refuses nice {nice} .Permission denied.: it takes"):
        threads.bound(spec(prio=prio))


class Machine:
    """Processors that others have taken shares of, second by second; its clock is the one that is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
        self.n_cpus, self.now, self.others_s, self.own_s = n_cpus, 100.0, 7.0, 3.0
        self.n_running = 1
        monkeypatch.setattr("server.llama.threads.time.monotonic", lambda: self.now)

    def look(self) -> Use:
        return Use(self.now, self.others_s, self.own_s, self.n_cpus, self.n_running)

    def after(
        self, threads: ComputeThreads, *shares: float, seconds: float = 2 * INTERVAL_S, idle: bool = False
    ) -> list[object]:
        """Return the changes when others take that many CPUs, one stretch after the other, of decodes or `idle`."""
        changes: list[object] = []
        for share in shares:
            self.now += seconds
            self.others_s += share * seconds
            if not idle:
                self.own_s += seconds
                threads.ended()
            changes.append(threads.change())
        return changes


@pytest.mark.parametrize(
    ("n_cpus", "n", "n_batch", "shares", "changes"),
    [
        (2, 2, 2, [0, 0, 1.0, 1.0, 0.4, 0.2], [None, None, (1, 1), None, None, (2, 2)]),
        (2, 2, 2, [0, 0.45, 0.2], [None, None, None]),  # a little is nothing
        (16, 16, 16, [0, 1.0, 3.0, 0.0], [None, (15, 15), (13, 13), (16, 16)]),
        (16, 16, 16, [0, 15.0, 16.0], [None, (8, 8), None]),  # not driven out
        (16, 8, 8, [0, 7.0, 10.0], [None, None, (6, 6)]),  # there was room
        (8, 4, 8, [0, 3.0, 4.0], [None, (4, 5), (4, 4)]),  # prompts have more
        (3, 3, 3, [0, 3.0], [None, (2, 2)]),
        (1, 1, 1, [0, 1.0, 1.0], [None, None, None]),
    ],
)
def test_each_thread_has_a_processor_to_itself(
    monkeypatch: pytest.MonkeyPatch, n_cpus: int, n: int, n_batch: int, shares: Sequence[float], changes: list[object]
) -> None:
    machine = Machine(monkeypatch, n_cpus)
    assert machine.after(ComputeThreads(n, n_batch, machine.look), *shares) == changes


def test_who_is_urgent_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, urgency = Machine(monkeypatch, 2), [0, -5]
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: urgency.pop(0))
    assert machine.after(ComputeThreads(2, 2, machine.look), 0, 1.0, 1.0) == [None, (1, 1), (2, 2)]


def test_looks_are_rare_and_what_others_use_while_nothing_is_computed_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 2)
    threads = ComputeThreads(2, 2, machine.look)
    assert machine.after(threads, 0, 1.0, seconds=INTERVAL_S / 3) == [None, None]
    assert machine.after(threads, 2.0, seconds=60.0, idle=True) == [None]
    assert machine.after(threads, 2.0, seconds=3.0) == [(1, 1)]  # one long decode
    machine.n_running = 2
    assert machine.after(threads, 2.0, seconds=2 * INTERVAL_S, idle=True) == [None]  # somebody is still there
    machine.n_running = 1
    assert machine.after(threads, 2.0, seconds=2 * INTERVAL_S, idle=True) == [(2, 2)]
    assert machine.after(threads, *[2.0, 0.0] * 3, seconds=INTERVAL_S / 2, idle=True) == [None] * 6


@pytest.mark.parametrize(("n_running", "changes"), [(1, [(16, 16)]), (3, [(14, 14)]), (12, [None]), (40, [None])])
def test_after_idle_time_each_thread_has_a_processor_where_nobody_runs(
    monkeypatch: pytest.MonkeyPatch, n_running: int, changes: list[object]
) -> None:
    machine = Machine(monkeypatch, 16)
    threads = ComputeThreads(16, 16, machine.look)
    assert machine.after(threads, 0, 9.0) == [None, (8, 8)]
    machine.n_running = n_running
    assert machine.after(threads, 9.0, seconds=60.0, idle=True) == changes


def test_a_neighbour_that_computes_in_turn_with_this_server_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2)
    threads = ComputeThreads(2, 2, machine.look)
    for _ in range(3):  # each request is one decode
        assert machine.after(threads, 2.0, seconds=0.5, idle=True) == [None]
        machine.now += 0.5
        machine.own_s += 1.0
        threads.ended()


def test_sampling_between_two_decodes_is_no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 32)
    threads = ComputeThreads(32, 32, machine.look)
    changes = []
    for _ in range(20):  # 19 ms of 20 are computed, and another process keeps one CPU busy
        machine.now += 0.019
        threads.ended()
        machine.now += 0.001
        machine.others_s += 0.02
        changes.append(threads.change())
    assert [change for change in changes if change] == [(31, 31)]


@pytest.mark.parametrize(("nice", "others_s"), [(0, 60.0), (5, 90.0), (-5, 60.0)])
def test_who_is_nice_counts_others_that_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nice: int, others_s: float
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0\ncpu0 4000 3000 2000 900000 0 500 500 0\ncpu1 9 9 9 9 9 9 9\nprocs_running 4\n")
    monkeypatch.setattr(threads, "_STAT", stat)
    monkeypatch.setattr(threads, "_TICKS_PER_S", 100)
    monkeypatch.setattr("server.llama.threads.os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: nice)
    monkeypatch.setattr("server.llama.threads.time.process_time", lambda: 10.0)
    found = measured()
    assert (found.others_s, found.own_s, found.n_cpus, found.n_running) == (others_s, 10.0, 1, 4)


@pytest.mark.skipif(not threads._STAT.exists(), reason="Linux only")
def test_the_kernel_says_what_others_took() -> None:
    before = measured()
    after = measured()
    assert after.n_cpus >= 1
    assert after.at >= before.at
