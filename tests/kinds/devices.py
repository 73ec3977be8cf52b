"""Placement on a real device that is not the processor: another process's, by llama.cpp's RPC backend, whose memory is
counted apart. What was measured before a load is what the load takes, on both."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kinds.kinds import TEXTS, complete
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.peer import rpc_backend
from tests.support.real_server import ROOT, RealServer, free_port

DEVICE = "RPC0"
DENSE = TinyModel(n_embd=256, n_layer=8, n_vocab=512)
EXPERTS = TinyModel(n_embd=256, n_layer=8, n_vocab=512, n_expert=8)
EXACT = ("-c", "512", "-np", "1", "-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--spec-type", "none")
_MEMORY = re.compile(rb"(\d+) MiB free")
_MIB = 1 << 20
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@pytest.fixture(scope="module")
def lent() -> Iterator[tuple[str, int]]:
    """The address of an rpc-server, and the MiB that its device says it has free, always the same."""
    with lending() as found:
        yield found


@contextmanager
def lending() -> Iterator[tuple[str, int]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.kinds.rpc_server", str(rpc_backend()), address]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        found = next(found for line in process.stdout if (found := _MEMORY.search(line)))
        yield address, int(found[1])
        process.stdin.close()


def test_tensors_are_split_over_devices(lent: tuple[str, int], tmp_path: Path) -> None:
    """Half of each on each of two, and the same tokens as by layers; flash attention is what such a split asks for."""
    path, same = gguf_file(tmp_path, DENSE), ("-fa", "on", "-ctk", "f16", "-ctv", "f16")
    with lending() as (other, _):
        machines = ("--rpc", f"{lent[0]},{other}", *same)
        layers, expected = answers(path, *machines)
        tensors, tokens = answers(path, *machines, "-sm", "tensor")
    assert tokens == expected
    by_layer, by_tensor = (memory["devices"] for memory in (layers, tensors))
    halves = [by_tensor[device] for device in (DEVICE, "RPC1")]
    assert halves[0] == halves[1]
    for part in ("weights", "context"):
        assert 2 * halves[0][part] == pytest.approx(sum(by_layer[d][part] for d in (DEVICE, "RPC1")), rel=0.02)


def answers(path: Path, *flags: str) -> tuple[dict[str, Any], list[list[int]]]:
    """What a server says of its memory, and the tokens that it writes."""
    port = free_port()
    command = [sys.executable, "-m", "server", "-m", str(path), "--port", str(port), *EXACT, *flags]
    with RealServer(command, port, {"GGML_BACKEND_PATH": str(rpc_backend())}) as server:
        server.wait_until_ready()
        memory: dict[str, Any] = server.get("/props")["memory"]
        return memory, [complete(server, text)["tokens"] for text in TEXTS[:3]]


@pytest.mark.parametrize(
    ("model", "part", "said"),
    [(DENSE, 0.6, "layers on the CPU"), (EXPERTS, 0.6, "experts of")],
    ids=["layers", "experts"],
)
def test_what_has_no_room_on_a_device_stays_on_the_processor(
    model: TinyModel, part: float, said: str, lent: tuple[str, int], tmp_path: Path
) -> None:
    (address, free), path = lent, gguf_file(tmp_path, model)
    whole, _ = answers(path, "--rpc", address)
    on_device = sum(whole["devices"][DEVICE].values())
    assert whole["notes"] == []
    room = int(part * on_device / _MIB)
    flags = ("--rpc", address, "--fit-target", str(free - room))
    memory, tokens = answers(path, *flags)
    taken = {device: sum(parts.values()) for device, parts in memory["devices"].items()}
    assert 0.5 * room < taken[DEVICE] / _MIB <= room
    assert any(said in note for note in memory["notes"])
    assert tokens == answers(path)[1], "another device computes the same"
    table = subprocess.run(
        [sys.executable, "-m", "server", "fit", str(path), *EXACT, *flags],
        env={"GGML_BACKEND_PATH": str(rpc_backend()), "PATH": ""},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for device, n_bytes in taken.items():
        row = next(line for line in table.splitlines() if line.split()[:1] == [device])
        together = re.findall(r"([\d.]+) (bytes|KiB|MiB|GiB)", row)[3]  # behind weights, context and computing
        assert n_bytes == pytest.approx(float(together[0]) * _UNITS[together[1]], rel=0.1), device
