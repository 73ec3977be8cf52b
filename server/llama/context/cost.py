"""The cost of a context's additional graph evaluations and sequence copies, measured once when it is created."""

import time
from collections.abc import Callable

from server.engine.runner_api import BatchEntry
from server.llama.context.batch import Batch
from server.llama.library import C

MAX_RUNS = 6  # the quickest counts, because on a busy machine a decode may take a hundred times as long
AGREEMENT = 1.1  # stop when the two quickest runs differ by less: six runs each would take a third of the startup
SLOW_S = 1.0  # stop after two runs or more that took so long
MANY_TOKENS = 16  # tokens of a longer run, in which a token takes about as long as one of a prompt


def measure(context: int, n_seq: int, n_vocab: int, token: int) -> tuple[float, float, float]:
    """Measure an empty `context` with separate KV, and empty it again. Returns the seconds of an additional evaluation,
    the tokens of a longer run that take as long, and the seconds to copy a sequence (see
    `server.engine.cache.move_budget`); 0 for operations that are never needed.

    Adjacent sequences are decoded together, others in one evaluation each. Four sequences are used if there are enough
    slots, because many CPUs gain little from two. The library copies cells in the next decode.
    """
    if n_seq < 2:
        return 0.0, 0.0, 0.0
    memory, batch = C.llama_get_memory(context), Batch(max(n_seq, MANY_TOKENS), n_seq, n_vocab)

    def decode_s(pos: int, *seqs: int, n_tokens: int = 1) -> float:
        batch.fill([BatchEntry(seq, pos, (token,) * n_tokens) for seq in seqs])
        started = time.perf_counter()
        status = C.llama_decode(context, batch.native)
        C.llama_synchronize(context)
        return time.perf_counter() - started if status == 0 else 0.0

    def quickest_s(*seqs: int, n_tokens: int = 1, copies: bool = False) -> float:
        C.llama_memory_clear(memory, False)
        if copies:
            decode_s(0, 0)

        def run(number: int) -> float:
            if copies:
                C.llama_memory_seq_rm(memory, 1, -1, -1)
                C.llama_memory_seq_cp(memory, 0, 1, -1, -1)
            return decode_s((number + copies) * n_tokens, *seqs, n_tokens=n_tokens)

        return quickest(run)

    evaluation_s, evaluation_tokens, n = 0.0, 0.0, min((n_seq + 1) // 2, 4)
    together_s = quickest_s(*range(n))
    if n > 1:
        evaluation_s = max(quickest_s(*range(0, 2 * n, 2)) - together_s, 0.0) / (n - 1)
    if C.llama_n_ubatch(context) >= MANY_TOKENS and (many_s := quickest_s(0, n_tokens=MANY_TOKENS)):
        evaluation_tokens = max(min(together_s / many_s, 1.0) * MANY_TOKENS - n, 0.0)
    copy_s = max(quickest_s(0, copies=True) - quickest_s(0), 0.0)
    C.llama_memory_clear(memory, False)
    return evaluation_s, evaluation_tokens, copy_s


def quickest(run: Callable[[int], float]) -> float:
    """Return the seconds of the quickest of two to `MAX_RUNS` runs. `run`: returns seconds, gets the run's number."""
    times: list[float] = []
    while len(times) < 2 or (sum(times) < SLOW_S and len(times) < MAX_RUNS and times[1] > AGREEMENT * times[0]):
        times = sorted([*times, run(len(times))])
    return times[0]
