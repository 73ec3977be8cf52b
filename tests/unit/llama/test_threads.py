"""The number of compute threads."""

from pathlib import Path

import pytest

from server.llama import threads


def test_a_given_number_is_taken() -> None:
    assert threads.n_threads(3) == 3
    assert threads.n_threads(10_000) == 512


def test_automatic_is_within_what_the_process_may_use() -> None:
    assert 1 <= threads.n_threads(-1) <= threads.usable_cpus() == threads.n_threads(0)


@pytest.mark.parametrize(
    ("text", "expected"), [("150000 100000", 2), ("max 100000", 64), ("", 64), ("50000 100000", 1)]
)
def test_a_control_groups_quota_bounds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: int
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    monkeypatch.setattr(threads, "_CPU_MAX", quota)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert threads.usable_cpus() == expected


def test_hardware_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings").write_text(f"core {cpu // 2}")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    assert threads.physical_cores() == 4


def test_on_hybrid_processors_only_performance_cores_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings").write_text(f"core {cpu}")
    fast = tmp_path / "cpus"
    fast.write_text("0-2,5\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(threads, "_PERFORMANCE_CORES", fast)
    assert threads.physical_cores() == 4
