"""Threads that compute beside threads."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from server.llama import threads
from server.llama.threads import INTERVAL_S, ComputeThreads, Use, measured


class Machine:
    """Processors that others have taken shares of, second by second; its clock is the one that is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
        self.n_cpus, self.now, self.others_s, self.own_s = n_cpus, 100.0, 7.0, 3.0
        monkeypatch.setattr("server.llama.threads.time.monotonic", lambda: self.now)

    def look(self) -> Use:
        return Use(self.now, self.others_s, self.own_s, self.n_cpus)

    def after(
        self, threads: ComputeThreads, *shares: float, seconds: float = 2 * INTERVAL_S, own: float = 1.0
    ) -> list[object]:
        """What changes when others take that many processors, one stretch after the other."""
        changes: list[object] = []
        for share in shares:
            self.now += seconds
            self.others_s += share * seconds
            self.own_s += own * seconds
            changes.append(threads.change())
        return changes


@pytest.mark.parametrize(
    ("n_cpus", "n", "shares", "changes"),
    [
        (2, 2, [0, 0, 1.0, 1.0, 0.4, 0.2], [None, None, (1, 1), None, None, (2, 2)]),
        (2, 2, [0, 0.45, 0.2], [None, None, None]),  # a little is nothing
        (16, 16, [0, 1.0, 3.0, 0.0], [None, (15, 15), (13, 13), (16, 16)]),
        (16, 16, [0, 15.0, 16.0], [None, (8, 8), None]),  # not driven out
        (16, 8, [0, 7.0, 10.0], [None, None, (6, 6)]),  # there was room
        (3, 3, [0, 3.0], [None, (2, 2)]),
        (1, 1, [0, 1.0, 1.0], [None, None, None]),
    ],
)
def test_each_thread_has_a_processor_to_itself(
    monkeypatch: pytest.MonkeyPatch, n_cpus: int, n: int, shares: Sequence[float], changes: list[object]
) -> None:
    machine = Machine(monkeypatch, n_cpus)
    assert machine.after(ComputeThreads(n, n, machine.look), *shares) == changes


def test_who_is_urgent_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, urgency = Machine(monkeypatch, 2), [0, -5]
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: urgency.pop(0))
    assert machine.after(ComputeThreads(2, 2, machine.look), 0, 1.0, 1.0) == [None, (1, 1), (2, 2)]


def test_prompts_may_have_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 8)
    assert machine.after(ComputeThreads(4, 8, machine.look), 0, 3.0, 4.0) == [None, (4, 5), (4, 4)]


def test_looks_are_rare_and_what_others_use_while_nothing_is_computed_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 2)
    threads = ComputeThreads(2, 2, machine.look)
    assert machine.after(threads, 0, 2.0, seconds=INTERVAL_S / 2) == [None, None]
    assert machine.after(threads, 2.0, seconds=60.0, own=0.01) == [None]
    assert machine.after(threads, 2.0, own=0.1) == [None]  # a client that prepares its next request
    assert machine.after(threads, 2.0, seconds=3.0) == [(1, 1)]  # one long step


@pytest.mark.parametrize(("nice", "others_s"), [(0, 60.0), (5, 90.0), (-5, 60.0)])
def test_who_is_nice_counts_others_that_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nice: int, others_s: float
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0\ncpu0 4000 3000 2000 900000 0 500 500 0\ncpu1 9 9 9 9 9 9 9\n")
    monkeypatch.setattr(threads, "_STAT", stat)
    monkeypatch.setattr(threads, "_TICKS_PER_S", 100)
    monkeypatch.setattr("server.llama.threads.os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("server.llama.threads.os.getpriority", lambda *_: nice)
    monkeypatch.setattr("server.llama.threads.time.process_time", lambda: 10.0)
    found = measured()
    assert (found.others_s, found.own_s, found.n_cpus) == (others_s, 10.0, 1)


@pytest.mark.skipif(not threads._STAT.exists(), reason="Linux only")
def test_the_kernel_says_what_others_took() -> None:
    before = measured()
    after = measured()
    assert after.n_cpus >= 1
    assert after.at >= before.at
