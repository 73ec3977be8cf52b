"""What every step and every request pays in Python, counted: no clock has a part in it."""

import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import server
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run

PACKAGE = str(Path(server.__file__).parent)
N_STREAMS, N_TOKENS = 8, 200


async def test_a_token_takes_few_calls() -> None:
    """It was 143 µs of Python; a plain token of one of eight streams takes 20 calls now, for less than 50 µs."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[f"{Path(code.co_filename).name}:{code.co_name}"] += 1

    replies = {f"prompt {i}": "x" * (2 * N_TOKENS) for i in range(N_STREAMS)}
    runner = FakeRunner(n_seq=N_STREAMS, n_ctx_seq=1024, n_batch=512, replies=replies)
    before = threading.getprofile()
    threading.setprofile(count)  # of the step thread, which is about to begin
    try:
        async with engine_over(runner, check_integrity=False) as engine:
            few = [request(prompt, max_tokens=10) for prompt in replies]
            await run(engine, *few)
            n_few = calls.total()
            await run(engine, *(request(prompt, max_tokens=10 + N_TOKENS) for prompt in replies))
            n_more = calls.total() - 2 * n_few
    finally:
        threading.setprofile(before)
    per_token = n_more / N_TOKENS / N_STREAMS
    assert per_token < 30, calls.most_common(20)
