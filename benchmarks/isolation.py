"""A model in a process of its own beside one in the server's: what HTTP and steps take when they share no interpreter.

``python -m benchmarks.isolation [--streams 64] [--tokens 2000] [--decode-ms 0] [--rounds 3]``: both ways in turn, over
a runner whose decode takes no time at all, or so many milliseconds without the interpreter's lock. Printed are tokens
a second by the wall, the time between steps, and the processor time of each process per token, which neighbours on the
machine change less: tokens a second are bounded by the largest of these where each process has a core of its own. The
client takes no part: it looks every 20 ms and reads whatever is there.
"""

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvicorn

from server.app import create_app
from server.engine.request import Adapters, SamplingParams
from server.engine.runner_api import BatchEntry
from server.options.model import ModelSettings
from server.options.server import ServerSettings
from server.options.sources import Origin
from server.pool.protocols import Loader
from server.settings import Settings
from server.transport.server import HttpProtocol
from tests.support.fakes import FakeLoader, FakeRunner, FakeSampler, FakeVocab

ROOT = Path(__file__).resolve().parents[1]
EXPIRY_CHECK_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


class IdleRunner(FakeRunner):
    """Decodes nothing, and samples the same letter for ever."""

    def __init__(self, n_seq: int, decode_s: float) -> None:
        super().__init__(n_seq=n_seq, n_ctx_seq=1 << 16, n_batch=2048)
        self._decode_s = decode_s
        self.info = replace(self.info, n_draft_max=0)
        self.vocab = FakeVocab()

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        if self._decode_s:
            time.sleep(self._decode_s)
        return True

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> FakeSampler:
        return FakeSampler(params, 1)

    def sample(self, output: int, sampler: FakeSampler) -> int:
        return 97

    def sample_together(self, wanted: Sequence[tuple[int, FakeSampler]]) -> dict[int, int | Exception]:
        return {output: 97 for output, _ in wanted}

    def use_adapters(self, adapters: Adapters) -> None:
        pass

    def seq_remove(self, seq: int, pos: int) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def make_loader(n_seq: int, decode_s: float) -> Loader:
    """In the model's own process, or here."""
    return FakeLoader(runner=lambda: IdleRunner(n_seq, decode_s))


def serve(isolation: str, n_seq: int, decode_s: float) -> None:
    """The server's process: its port is the first line that it prints."""
    model = {"path": "idle.gguf", "load": "on_demand", "isolation": isolation, "n_parallel": n_seq, "spec_type": "none"}
    settings = Settings(
        server=ServerSettings(),
        models={"idle": ModelSettings.model_validate(model)},
        origins={"idle": Origin("benchmark")},
        no_network=True,
    )
    from benchmarks.isolation import make_loader as importable  # `__main__` is another module there

    app = create_app(settings, loader=make_loader(n_seq, decode_s), in_process=partial(importable, n_seq, decode_s))
    sys.setswitchinterval(0.0005)  # as the native library's module does
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, http=HttpProtocol, lifespan="on", log_level="error", access_log=False)
        uvicorn.Server(config).run([listener])


@dataclass(frozen=True, slots=True)
class Measured:
    """One way. ``cpu_us``: of each process, per token."""

    tokens_per_s: float
    step_ms: float
    cpu_us: Mapping[str, float]

    @property
    def most_us(self) -> float:
        """Of the process that takes most."""
        return max(self.cpu_us.values())


def measure(isolation: str, n_streams: int, n_tokens: int, decode_ms: float) -> Measured:
    """Start a server, read all streams at once."""
    command = [sys.executable, "-m", "benchmarks.isolation", "--serve", isolation]
    command += ["--streams", str(n_streams), "--decode-ms", str(decode_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            read(port, n_streams, 50)  # warms up, and waits for the load
            before = _cpu_s(server.pid)
            seconds = read(port, n_streams, n_tokens)
            spent = {name: s - before.get(name, 0.0) for name, s in _cpu_s(server.pid).items()}
        finally:
            server.terminate()
    n = n_streams * n_tokens
    return Measured(n / seconds, seconds / n_tokens * 1e3, {name: s / n * 1e6 for name, s in spent.items()})


def read(port: int, n_streams: int, n_tokens: int) -> float:
    """Seconds from the first text to the last end of streams that are asked for together."""
    body = json.dumps(
        {"prompt": "x", "stream": True, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    ).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(n_streams)]
    for stream in streams:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        stream.sendall(request)
        stream.setblocking(False)
    began = 0.0
    open_, unread = set(streams), set(streams)
    buffer = bytearray(1 << 20)
    while open_:
        ready, _, _ = select.select(list(open_), [], [], 60)
        assert ready, "nothing came for a minute"
        began = began or time.perf_counter()
        for stream in ready:
            n = stream.recv_into(buffer)
            if n and stream in unread:
                assert buffer.startswith(b"HTTP/1.1 200"), bytes(buffer[:n])
                unread.discard(stream)
            if not n:
                open_.discard(stream)
                stream.close()
        time.sleep(EXPIRY_CHECK_S)
    return time.perf_counter() - began


def _cpu_s(pid: int) -> dict[str, float]:
    """Processor time of the server, and of the model's process where there is one."""
    found = {"server": _of(pid)}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "worker.child" in Path(f"/proc/{child}/cmdline").read_text():
            found["model"] = _of(int(child))
    return found


def _of(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--decode-ms", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("none", "process"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.streams, given.decode_ms / 1e3)
        return
    found: dict[str, list[Measured]] = {"none": [], "process": []}
    print("| isolation | tokens/s | ms a step | server, us a token | model, us a token |\n|---|--:|--:|--:|--:|")
    for number in range(given.rounds):
        for way in ("none", "process") if number % 2 == 0 else ("process", "none"):
            one = measure(way, given.streams, given.tokens, given.decode_ms)
            found[way].append(one)
            model = f"{one.cpu_us['model']:.1f}" if "model" in one.cpu_us else ""
            print(
                f"| {way} | {one.tokens_per_s:,.0f} | {one.step_ms:.2f} | {one.cpu_us['server']:.1f} | {model} |",
                flush=True,
            )
    own, other = (max(found[way], key=lambda one: one.tokens_per_s) for way in ("none", "process"))
    least = {way: min(one.most_us for one in found[way]) for way in found}
    print(
        f"\nbest by the wall: {other.tokens_per_s / own.tokens_per_s:.2f} times the tokens/s, "
        f"{other.step_ms - own.step_ms:+.2f} ms a step; by processor time of the busiest process: "
        f"{least['none'] / least['process']:.2f} times"
    )


if __name__ == "__main__":
    main()
