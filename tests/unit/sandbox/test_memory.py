"""The memory that a process may use: that of the machine, limited by the control groups that contain it."""

import os
from pathlib import Path

import pytest

from server.sandbox import memory

MIB = 1 << 20


def write_group(group: Path, limit: str, used_mib: int, cached_mib: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(limit)
    (group / "memory.current").write_text(str(used_mib * MIB))
    (group / "memory.stat").write_text(f"anon 1\nactive_file {cached_mib * MIB}\ninactive_file 0\n")


@pytest.mark.parametrize(
    ("own", "service", "parent", "expected"),
    [
        ("0::/system.slice/llamapool.service\n", 512, 2048, (512, 412)),
        ("0::/system.slice/llamapool.service\n", 512, 256, (256, 156)),
        ("0::/system.slice/other.service\n", 512, 2048, (2048, 1948)),
        ("0::/\n", 512, 2048, (8192, 4096)),
        ("4:memory:/system.slice/llamapool.service\n", 512, 2048, (8192, 4096)),
        ("", 512, 2048, (8192, 4096)),
    ],
)
def test_available_memory_is_limited_by_every_enclosing_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, service: int, parent: int, expected: tuple[int, int]
) -> None:
    groups = tmp_path / "groups"
    write_group(groups, "max", 0, 0)
    write_group(groups / "system.slice", str(parent * MIB), 150, 50)
    write_group(groups / "system.slice" / "llamapool.service", str(service * MIB), 150, 50)
    (tmp_path / "meminfo").write_text(f"MemTotal: {8192 << 10} kB\nMemAvailable: {4096 << 10} kB\n")
    if own:
        (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", groups)
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    assert (memory.total_bytes(0) // MIB, memory.available_bytes() // MIB) == expected


def test_path_of_a_control_group_need_not_be_utf8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"0::/caf\xe9\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    assert list(memory.control_groups()) == [tmp_path / os.fsdecode(b"caf\xe9"), tmp_path]
