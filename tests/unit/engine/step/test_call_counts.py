"""The cost of a decoded token in Python, as a number of function calls, which does not depend on a clock."""

import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import server
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run

PACKAGE = str(Path(server.__file__).parent)
N_SEQUENCES, N_TOKENS = 8, 200


async def test_decoded_token_costs_few_python_calls() -> None:
    """With eight sequences, 20 calls take less than 50 µs. A token once cost 143 µs."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    replies = {f"prompt {i}": "x" * (2 * N_TOKENS) for i in range(N_SEQUENCES)}
    runner = FakeRunner(n_seq=N_SEQUENCES, n_ctx_seq=1024, n_batch=512, replies=replies)
    before = threading.getprofile()
    threading.setprofile(count)  # for the step thread, which starts next
    try:
        async with engine_over(runner, check_integrity=False) as engine:
            await run(engine, *(request(prompt, max_tokens=10) for prompt in replies))
            n_short = calls.total()
            await run(engine, *(request(prompt, max_tokens=10 + N_TOKENS) for prompt in replies))
            n_more = calls.total() - 2 * n_short
    finally:
        threading.setprofile(before)
    per_token = n_more / N_TOKENS / N_SEQUENCES
    assert per_token < 30, calls.most_common(20)
