"""What the web page's live data cost while somebody looks, in processor time: ``python -m benchmarks.page_live``.

32 slots of 2,100 tokens whose beginnings are shared, 100 steps a second; no model, so that only the telling is timed.
"""

import time
from collections.abc import Callable

from server.engine.generate.text import TextStream
from server.engine.params import EngineParams
from server.engine.request import Request
from server.engine.schedule.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket
from server.engine.step.published import PERIOD_S, Publisher
from tests.fakes import FakeRunner

SLOTS, SHARED, OWN, OUTPUT = 32, 500, 1500, 100
STEPS_PER_S = 100


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
        sequence = Sequence(Ticket(request, lambda _: None, 0.0), 0, TextStream(()), request.prompt)
        sequence.phase, sequence.slot, sequence.output = Phase.DECODE, slot, [1] * OUTPUT
        slot.sequence, slot.tokens = sequence, request.prompt + sequence.output
        entries.append(TokenRun(slot.id, len(slot.tokens), [1], True, sequence))
    published = Publisher(scheduler, time.perf_counter, 0)
    step_s = seconds(lambda: published.step(entries, 0, 0.01), 20_000)
    view_s = seconds(lambda: published.publish(idle=True), 500)
    share = view_s / PERIOD_S + step_s * STEPS_PER_S
    print(f"a step {step_s * 1e6:.1f} us, a view {view_s * 1e3:.2f} ms: {share:.2%} of the step thread's time")


if __name__ == "__main__":
    main()
