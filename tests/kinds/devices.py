"""Placement on a real device besides the CPU: another process, through llama.cpp's RPC backend, with its own memory.
The memory predicted before a load is what the load takes, on both.
"""

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
def rpc_device() -> Iterator[tuple[str, int]]:
    """The address of an rpc-server, and the free MiB that its device reports, which never change."""
    with running_rpc_server() as found:
        yield found


@contextmanager
def running_rpc_server() -> Iterator[tuple[str, int]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.kinds.rpc_server", str(rpc_backend()), address]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        found = next(found for line in process.stdout if (found := _MEMORY.search(line)))
        yield address, int(found[1])
        process.stdin.close()


def test_tensors_are_split_over_devices(rpc_device: tuple[str, int], tmp_path: Path) -> None:
    """Two devices get half of each tensor, and give the same tokens as with layers split over them. Splitting tensors
    requires flash attention.
    """
    path, same = gguf_file(tmp_path, DENSE), ("-fa", "on", "-ctk", "f16", "-ctv", "f16")
    with running_rpc_server() as (second, _):
        flags = ("--rpc", f"{rpc_device[0]},{second}", *same)
        layers, expected = memory_and_tokens(path, *flags)
        tensors, tokens = memory_and_tokens(path, *flags, "-sm", "tensor")
    assert tokens == expected
    by_layer, by_tensor = (memory["devices"] for memory in (layers, tensors))
    halves = [by_tensor[device] for device in (DEVICE, "RPC1")]
    assert halves[0] == halves[1]
    for part in ("weights", "context"):
        assert 2 * halves[0][part] == pytest.approx(sum(by_layer[d][part] for d in (DEVICE, "RPC1")), rel=0.02)


def memory_and_tokens(path: Path, *flags: str) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the memory that a server reports, and the tokens of its replies to `TEXTS`."""
    port = free_port()
    command = [sys.executable, "-m", "server", "-m", str(path), "--port", str(port), *EXACT, *flags]
    with RealServer(command, port, {"GGML_BACKEND_PATH": str(rpc_backend())}) as server:
        server.wait_until_ready()
        memory: dict[str, Any] = server.get("/props")["memory"]
        return memory, [complete(server, text)["tokens"] for text in TEXTS[:3]]


@pytest.mark.parametrize(
    ("model", "note"),
    [(DENSE, "layers on the CPU"), (EXPERTS, "experts of")],
    ids=["layers", "experts"],
)
def test_layers_or_experts_that_do_not_fit_on_the_device_stay_on_the_cpu(
    model: TinyModel, note: str, rpc_device: tuple[str, int], tmp_path: Path
) -> None:
    (address, free), path = rpc_device, gguf_file(tmp_path, model)
    whole, _ = memory_and_tokens(path, "--rpc", address)
    on_device = sum(whole["devices"][DEVICE].values())
    assert whole["notes"] == []
    limit = int(0.6 * on_device / _MIB)
    flags = ("--rpc", address, "--fit-target", str(free - limit))
    memory, tokens = memory_and_tokens(path, *flags)
    used = {device: sum(parts.values()) for device, parts in memory["devices"].items()}
    assert 0.5 * limit < used[DEVICE] / _MIB <= limit
    assert any(note in each for each in memory["notes"])
    assert tokens == memory_and_tokens(path)[1], "the CPU alone gives other tokens"
    table = subprocess.run(
        [sys.executable, "-m", "server", "fit", str(path), *EXACT, *flags],
        env={"GGML_BACKEND_PATH": str(rpc_backend()), "PATH": ""},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for device, n_bytes in used.items():
        row = next(line for line in table.splitlines() if line.split()[:1] == [device])
        total, unit = re.findall(r"([\d.]+) (bytes|KiB|MiB|GiB)", row)[3]  # after weights, context and compute
        assert n_bytes == pytest.approx(float(total) * _UNITS[unit], rel=0.1), device
