"""The number of compute threads: cores, quotas, CPU sets, and fewer threads while other processes use the CPUs."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.params import EngineParams
from server.errors import ModelFailed
from server.llama import threads
from server.llama.threads import INTERVAL_S, ComputeThreads, CpuUse, read_cpu_use
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from server.sandbox import memory


def test_n_threads_is_the_setting_or_at_most_the_usable_cpus() -> None:
    assert (threads.n_threads(3), threads.n_threads(10_000)) == (3, 512)
    assert 1 <= threads.n_threads(-1) <= threads.usable_cpus() == threads.n_threads(0)


@pytest.mark.parametrize(
    ("quota", "parent_quota", "expected"),
    [
        ("150000 100000", "max 100000", 2),
        ("max 100000", "max 100000", 64),
        ("", "", 64),
        ("50000 100000", "", 1),
        ("max 100000", "400000 100000", 4),
        ("800000 100000", "400000 100000", 4),
    ],
)
def test_usable_cpus_are_limited_by_the_quotas_of_all_control_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, parent_quota: str, expected: int
) -> None:
    service = tmp_path / "groups" / "system.slice" / "llamapool.service"
    service.mkdir(parents=True)
    (service / "cpu.max").write_text(quota)
    (service.parent / "cpu.max").write_text(parent_quota)
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/system.slice/llamapool.service\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert threads.usable_cpus() == expected


@pytest.mark.parametrize(("per_core", "performance_cores", "expected"), [(2, None, 4), (1, "0-2,5,6\n", 5)])
def test_physical_cores_ignore_hyperthreads_and_efficiency_cores(
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
        (({0, 1, 2, 3},), 2, -1, 2),  # two instances share four CPUs
        (({0, 1, 2, 3}, {4, 5, 6}), 2, -1, 3),
        (({0, 1, 2}, {3, 4, 511}), 2, -1, 2),
    ],
)
def test_instances_divide_the_cores_or_use_a_thread_per_cpu_of_their_own(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[set[int], ...], instances: int, n_threads: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(threads, "usable_cpus", lambda: 8)
    monkeypatch.setattr(threads, "physical_cores", lambda: 8)
    native = LoadParams(n_threads=n_threads, instances=instances)
    model = spec(*cpus)
    bound = threads.bound(replace(model, native=native, draft=DraftFile(model.path, native)))
    assert bound.draft is not None
    assert bound.draft.native.n_threads == bound.native.n_threads == expected


def test_cpu_sets_and_priorities_that_the_system_lacks_fail_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_priority_that_the_system_refuses_fails_the_load(
    monkeypatch: pytest.MonkeyPatch, prio: int, nice: int
) -> None:
    def refuse(_which: int, _who: int, value: int) -> None:
        assert value == max(nice, os.getpriority(os.PRIO_PROCESS, 0) if prio < 0 else nice)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    with pytest.raises(ModelFailed, match=f"prio {prio}: the system refuses nice {nice} .Permission denied.: it takes"):
        threads.bound(spec(prio=prio))


class FakeMachine:
    """CPU use of this process and of others, as `read_cpu_use` reports it. Replaces the monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
        self.n_cpus, self.now, self.others_s, self.own_s = n_cpus, 100.0, 7.0, 3.0
        self.n_running = 1
        monkeypatch.setattr("server.llama.threads.time.monotonic", lambda: self.now)

    def threads(self, n: int | None = None, n_batch: int | None = None) -> ComputeThreads:
        """Return compute threads on this machine, by default one for each CPU."""
        return ComputeThreads(n or self.n_cpus, n_batch or n or self.n_cpus, self._use)

    def _use(self) -> CpuUse:
        return CpuUse(self.now, self.others_s, self.own_s, self.n_cpus, self.n_running)

    def run(
        self, threads: ComputeThreads, *others: float, seconds: float = 2 * INTERVAL_S, idle: bool = False
    ) -> list[object]:
        """Pass `seconds` for each number of CPUs that `others` use, with one decode or `idle`. Returns the changes."""
        changes: list[object] = []
        for n_used in others:
            self.now += seconds
            self.others_s += n_used * seconds
            if not idle:
                self.own_s += seconds
                threads.ended()
            changes.append(threads.change())
        return changes


@pytest.mark.parametrize(
    ("n_cpus", "n", "n_batch", "others", "changes"),
    [
        (2, 2, 2, [0, 0, 1.0, 1.0, 0.4, 0.2], [None, None, (1, 1), None, None, (2, 2)]),
        (2, 2, 2, [0, 0.45, 0.2], [None, None, None]),  # less than half a CPU is ignored
        (16, 16, 16, [0, 1.0, 3.0, 0.0], [None, (15, 15), (13, 13), (16, 16)]),
        (16, 16, 16, [0, 15.0, 16.0], [None, (8, 8), None]),  # never below half
        (16, 8, 8, [0, 7.0, 10.0], [None, None, (6, 6)]),  # 9 free CPUs are enough for 8 threads
        (8, 4, 8, [0, 3.0, 4.0], [None, (4, 5), (4, 4)]),  # prefill uses more threads
        (3, 3, 3, [0, 3.0], [None, (2, 2)]),
        (1, 1, 1, [0, 1.0, 1.0], [None, None, None]),
    ],
)
def test_threads_are_reduced_to_the_cpus_that_others_leave(
    monkeypatch: pytest.MonkeyPatch, n_cpus: int, n: int, n_batch: int, others: Sequence[float], changes: list[object]
) -> None:
    machine = FakeMachine(monkeypatch, n_cpus)
    assert machine.run(machine.threads(n, n_batch), *others) == changes


def test_a_negative_nice_value_keeps_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, nice = FakeMachine(monkeypatch, 2), [0, -5]
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: nice.pop(0))
    assert machine.run(machine.threads(), 0, 1.0, 1.0) == [None, (1, 1), (2, 2)]


def test_cpu_use_is_read_once_per_interval_and_ignored_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch, 2)
    threads = machine.threads()
    assert machine.run(threads, 0, 1.0, seconds=INTERVAL_S / 3) == [None, None]
    assert machine.run(threads, 2.0, seconds=60.0, idle=True) == [None]
    assert machine.run(threads, 2.0, seconds=3.0) == [(1, 1)]  # one long decode
    machine.n_running = 2
    assert machine.run(threads, 2.0, seconds=2 * INTERVAL_S, idle=True) == [None]  # another thread still runs
    machine.n_running = 1
    assert machine.run(threads, 2.0, seconds=2 * INTERVAL_S, idle=True) == [(2, 2)]
    assert machine.run(threads, *[2.0, 0.0] * 3, seconds=INTERVAL_S / 2, idle=True) == [None] * 6


@pytest.mark.parametrize(("n_running", "changes"), [(1, [(16, 16)]), (3, [(14, 14)]), (12, [None]), (40, [None])])
def test_after_idle_time_threads_grow_to_the_cpus_without_a_running_thread(
    monkeypatch: pytest.MonkeyPatch, n_running: int, changes: list[object]
) -> None:
    machine = FakeMachine(monkeypatch, 16)
    threads = machine.threads()
    assert machine.run(threads, 0, 9.0) == [None, (8, 8)]
    machine.n_running = n_running
    assert machine.run(threads, 9.0, seconds=60.0, idle=True) == changes


def test_a_process_that_alternates_with_this_server_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch, 2)
    threads = machine.threads()
    for _ in range(3):  # each request is one decode
        assert machine.run(threads, 2.0, seconds=0.5, idle=True) == [None]
        machine.now += 0.5
        machine.own_s += 1.0
        threads.ended()


def test_the_time_between_two_decodes_of_a_reply_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(monkeypatch, 32)
    threads = machine.threads()
    changes = []
    for _ in range(20):  # 19 ms of decode, 1 ms of sampling; another process keeps one CPU busy
        machine.now += 0.019
        threads.ended()
        machine.now += 0.001
        machine.others_s += 0.02
        changes.append(threads.change())
    assert [change for change in changes if change] == [(31, 31)]


@pytest.mark.parametrize(("nice", "others_s"), [(0, 60.0), (5, 90.0), (-5, 60.0)])
def test_cpu_use_of_niced_processes_counts_only_if_this_one_is_niced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nice: int, others_s: float
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0\ncpu0 4000 3000 2000 900000 0 500 500 0\ncpu1 9 9 9 9 9 9 9\nprocs_running 4\n")
    monkeypatch.setattr(threads, "_STAT", stat)
    monkeypatch.setattr(threads, "_TICKS_PER_S", 100)
    monkeypatch.setattr("server.llama.threads.os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: nice)
    monkeypatch.setattr("server.llama.threads.time.process_time", lambda: 10.0)
    use = read_cpu_use()
    assert (use.others_s, use.own_s, use.n_cpus, use.n_running) == (others_s, 10.0, 1, 4)


@pytest.mark.skipif(not threads._STAT.exists(), reason="Linux only")
def test_cpu_use_is_read_from_the_real_kernel() -> None:
    before = read_cpu_use()
    after = read_cpu_use()
    assert after.n_cpus >= 1
    assert after.at >= before.at
