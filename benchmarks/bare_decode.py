"""Measure tokens per second of the bare runner, without a server or an event loop.

    python -m benchmarks.bare_decode models/demo.gguf --threads 2 --sequences 1 8
    python -m benchmarks.bare_decode models/demo.gguf --threads 2 --prompt 1792 --lengths 1 17 63 64

With ``--lengths``, it prints the milliseconds of one decode of so many tokens after the prompt, all with logits.

The result is the upper limit for the server with the same library. ``python`` is the part of a step outside
`llama_decode`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from server.engine.request import SamplingParams
from server.engine.runner_api import BatchEntry
from server.llama.context.runner import LlamaRunner
from server.llama.library import C, system_info
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import LoadParams, ModelSpec


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the steps of one run. Prompts are decoded one after the other."""

    n_seq: int
    prompt_tokens_per_s: float
    tokens_per_s: float
    step_ms: float
    python_us: float


def measure(weights: LlamaWeights, n_seq: int, n_prompt: int, n_steps: int, params: SamplingParams) -> Result:
    """Generate `n_steps` tokens in each of `n_seq` parallel sequences, after prompts of `n_prompt` tokens."""
    runner = weights.runner()
    native = _Stopwatch()
    decode, C.llama_decode = C.llama_decode, native.wrap(C.llama_decode)
    try:
        prompt_s, steps = _generate(runner, n_seq, n_prompt, n_steps, params, native)
    finally:
        C.llama_decode = decode
        runner.close()
    step_s = statistics.median(total for total, _ in steps)
    python_s = statistics.median(total - inside for total, inside in steps)
    tokens_per_s = n_seq / statistics.mean(t for t, _ in steps)
    return Result(n_seq, n_seq * n_prompt / prompt_s, tokens_per_s, step_s * 1e3, python_s * 1e6)


class _Stopwatch:
    """The time inside the native decode since the last `take`."""

    def __init__(self) -> None:
        self._spent_s = 0.0

    def wrap(self, function: Callable[..., int]) -> Callable[..., int]:
        def timed(context: object, batch: object) -> int:
            started = time.perf_counter()
            status = function(context, batch)
            self._spent_s += time.perf_counter() - started
            return status

        return timed

    def take(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


def _generate(
    runner: LlamaRunner, n_seq: int, n_prompt: int, n_steps: int, params: SamplingParams, native: _Stopwatch
) -> tuple[float, list[tuple[float, float]]]:
    prompts = [[(7 + seq + i) % (runner.vocab.n_tokens // 2) for i in range(n_prompt)] for seq in range(n_seq)]
    last = []
    samplers = [runner.sampler(params, prompt) for prompt in prompts]
    started, size = time.perf_counter(), runner.info.n_batch
    for seq, prompt in enumerate(prompts):
        for start in range(0, n_prompt, size):
            runner.decode([BatchEntry(seq, start, prompt[start : start + size], n_outputs=1)])
        last.append(runner.sample(0, samplers[seq]))
    prompt_s = time.perf_counter() - started
    native.take()
    steps = []
    for step in range(n_steps):
        started = time.perf_counter()
        runner.decode([BatchEntry(seq, n_prompt + step, (last[seq],), n_outputs=1) for seq in range(n_seq)])
        last = [runner.sample(seq, samplers[seq]) for seq in range(n_seq)]
        steps.append((time.perf_counter() - started, native.take()))
    for sampler in samplers:
        sampler.close()
    return prompt_s, steps


def measure_lengths(weights: LlamaWeights, n_prompt: int, lengths: list[int], n_steps: int) -> dict[int, float]:
    """Return the median milliseconds of a decode of each of `lengths` tokens after `n_prompt` tokens."""
    runner = weights.runner()
    for at in range(0, n_prompt, runner.info.n_batch):
        runner.decode([BatchEntry(0, at, [5] * min(runner.info.n_batch, n_prompt - at))])
    times: dict[int, list[float]] = {n: [] for n in lengths}
    for n in lengths * n_steps:
        started = time.perf_counter()
        runner.decode([BatchEntry(0, n_prompt, [7] * n, n_outputs=n)])
        times[n].append((time.perf_counter() - started) * 1e3)
        runner.seq_remove(0, n_prompt)
    runner.close()
    return {n: statistics.median(each) for n, each in times.items()}


def main() -> None:
    """Print one line per number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=-1)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=64, help="tokens to generate in each sequence")
    parser.add_argument("--unified", action="store_true", help="one KV stream for all sequences")
    parser.add_argument("--flash-attn", nargs="+", choices=("on", "off", "auto"), default=["auto"])
    parser.add_argument("--greedy", action="store_true", help="temperature 0 instead of the default samplers")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of single decodes after one prompt")
    args = parser.parse_args()
    if args.lengths:
        args.sequences, args.steps = [1], min(args.steps, 9)
    params = SamplingParams(temperature=0.0 if args.greedy else 0.8, seed=1, ignore_eos=True)
    n_ctx_seq = -(-(args.prompt + max([args.steps, *(args.lengths or ())]) + 1) // 256) * 256
    print(system_info())
    for n_seq, flash_attn in product(args.sequences, args.flash_attn):
        native = LoadParams(
            n_ctx=n_ctx_seq * n_seq,
            n_parallel=n_seq,
            n_threads=args.threads,
            kv_unified=args.unified,
            flash_attn=flash_attn,
        )
        weights = LlamaLoader().load(ModelSpec("bench", args.model, native=native), lambda _fraction: True)
        assert isinstance(weights, LlamaWeights)
        if args.lengths:
            found = measure_lengths(weights, args.prompt, args.lengths, args.steps)
            print(", ".join(f"{n}: {ms:.1f} ms" for n, ms in found.items()), flush=True)
            weights.close()
            continue
        result = measure(weights, n_seq, args.prompt, args.steps, params)
        weights.close()
        print(
            f"{result.n_seq:3d} sequences, flash attention {flash_attn}: "
            f"prompts {result.prompt_tokens_per_s:6.0f} tok/s, {result.tokens_per_s:8.1f} tok/s, "
            f"step {result.step_ms:7.2f} ms, of it python {result.python_us:6.0f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
