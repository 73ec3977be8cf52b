"""What a run of endurance counts."""

import subprocess
import sys

from benchmarks.endurance import of_processes
from benchmarks.resources import with_children

HOLDS = "held = b'x' * (64 << 20); files = [open('/dev/null') for _ in range(30)]; print('held', flush=True); input()"
STARTS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {HOLDS!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"\\n")
print("ended", flush=True)
input()
"""


def test_what_a_servers_processes_hold_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "held\n"
        assert len(with_children(server.pid)) == 2
        memory, n_descriptors, n_threads = of_processes(server.pid)
        assert n_threads == 2
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline() == "ended\n"
        assert with_children(server.pid) == [server.pid]
        alone, n_alone, _ = of_processes(server.pid)
        assert memory > alone + 64
        assert n_descriptors >= n_alone + 30
        server.communicate("\n")
