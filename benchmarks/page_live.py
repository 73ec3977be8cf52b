"""What the web page's live data cost while somebody looks: ``python -m benchmarks.page_live [MODEL.gguf]``.

First the telling alone, in processor time: 32 slots of 2,100 tokens whose beginnings are shared, 100 steps a second, no
model. With a model also 32 real streams, by turns with and without somebody who looks.
"""

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from server.engine.params import EngineParams
from server.engine.request import Request
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket
from server.engine.snapshots import SnapshotPublisher
from server.web.live import EVERY_S
from tests.support.fakes import FakeRunner
from tests.support.real_server import RealServer, llamapool

SLOTS, SHARED, OWN, OUTPUT = 32, 500, 1500, 100
STEPS_PER_S = 100
TOKENS, PAIRS = 200, 6  # of each stream; of rounds with and without


def seconds(work: Callable[[], object], times: int) -> float:
    """Processor time of one call."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    """Print a line."""
    scheduler = Scheduler(FakeRunner(n_seq=SLOTS, n_ctx_seq=4096).info, EngineParams())
    entries = []
    for slot in scheduler.slots:
        request = Request(f"chatcmpl-{slot.id:032d}", [7] * SHARED + [slot.id] * OWN)
        sequence = Sequence(Ticket(request, lambda _: None, 0.0), 0, request.prompt)
        sequence.phase, sequence.slot, sequence.output = Phase.DECODE, slot, [1] * OUTPUT
        slot.sequence, slot.tokens = sequence, request.prompt + sequence.output
        entries.append(TokenRun(slot.id, len(slot.tokens), [1], 1, sequence))
    snapshots = SnapshotPublisher(scheduler, time.perf_counter, 0)
    step_s = seconds(lambda: snapshots.step(entries, 0, 0.01), 20_000)

    def look() -> None:
        snapshots.read()
        snapshots.publish()

    view_s = seconds(look, 500)
    share = view_s / EVERY_S + step_s * STEPS_PER_S
    print(f"a step {step_s * 1e6:.1f} us, a view {view_s * 1e3:.2f} ms: {share:.2%} of the step thread's time")


class Looking:
    """Reads the live data as a page does, and throws it away."""

    def __init__(self, server: RealServer) -> None:
        host, port = server.base_url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(b"GET /page/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.n_bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while part := self._socket.recv(1 << 20):
            self.n_bytes += len(part)

    def stop(self) -> None:
        """Look no longer."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def spent_s(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def round_of(server: RealServer) -> tuple[float, float]:
    """32 streams to their end: tokens per second, and the server's processor seconds for a thousand tokens."""
    body = {
        "prompt": "Once upon a time " * 20,
        "n_predict": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "temperature": 1,
    }

    def ask(i: int) -> None:
        server.events("/completion", body | {"seed": i})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(SLOTS)]
    before, began = spent_s(server.process.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, spent = time.perf_counter() - began, spent_s(server.process.pid) - before
    return SLOTS * TOKENS / elapsed, 1000 * spent / (SLOTS * TOKENS)


def streams(model: Path) -> None:
    """Print the medians of the ratios of neighbouring rounds."""
    with llamapool(model, "-np", str(SLOTS), "-c", str(SLOTS * 512)) as server:
        round_of(server)
        rates, costs, n_bytes = [], [], 0
        for n in range(PAIRS):
            found = {}
            for looked in (True, False) if n % 2 else (False, True):
                looking = Looking(server) if looked else None
                found[looked] = round_of(server)
                if looking is not None:
                    looking.stop()
                    n_bytes = looking.n_bytes
            rates.append(found[True][0] / found[False][0])
            costs.append(found[True][1] / found[False][1])
            print(json.dumps({str(looked): [round(value, 3) for value in values] for looked, values in found.items()}))
    rate, cost = statistics.median(rates) - 1, statistics.median(costs) - 1
    print(f"{SLOTS} streams: tokens/s {rate:+.1%}, processor time {cost:+.1%}")
    print(f"{n_bytes / 1024:.0f} KiB of events in the last round")


if __name__ == "__main__":
    main()
    if len(sys.argv) > 1:
        streams(Path(sys.argv[1]))
