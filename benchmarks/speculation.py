"""Measure the gain and cost of speculative decoding: ``python -m benchmarks.speculation`` (see docs/speculation.md).

Each scenario runs alternately with and without draft tokens, on the engine and the native library, without HTTP. The
rate is tokens per second of all streams from the first token to the last. The ratio is the median of the ratios within
each round. If other processes use the CPU, prefer the ratio by CPU time, and set ``OMP_WAIT_POLICY=passive`` for it.

| scenario | reply |
|---|---|
| `edit` | the prompt again, with a token replaced, omitted or inserted about every 40 tokens |
| `random` | random tokens, which no drafter can predict |
| `words` | random text of 200 words: short runs repeat by chance, but not what follows them |
| `chat` | replies of the demo model, made as slow as one of 60 million parameters (`inflate_gguf`) |
| `file` | replies of a real model (``--real FILE``, with ChatML) to the task to rename something in a file |
| `quote` | the same model, asked to repeat a paragraph |
| `other` | the same model, asked for a story, an explanation, a list |

In the first three, the model is that of `make_gguf` with 135 M parameters. It computes every token, and a script
replaces the sampled ones. In `chat`, replies are real; the draft model is the demo draft, at a tenth of the cost.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.inflate_gguf import inflate
from benchmarks.make_gguf import SHAPES, write_gguf
from server.engine.engine import Engine
from server.engine.params import LOOKUP, EngineParams
from server.engine.request import Event, Failed, Finished, Request, SamplingParams, Started
from server.llama.context.runner import LlamaRunner
from server.llama.loader import LlamaLoader
from server.llama.sampling.sampler import NativeSampler
from server.pool.protocols import Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec

MODELS = ROOT / "benchmarks" / "models"
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
CHAT_PROMPTS = (
    "Tell me a story about a {}.",
    "Tell me a long story about a {} and its friend.",
    "Write a story with a {}.",
)
REAL = ("file", "quote", "other")
RENAMED = (  # a function; its new name; the file
    ("fingerprint", "digest", "server/llama/files/model_file.py"),
    ("turn_ends", "ends_of_turns", "server/llama/files/roles.py"),
    ("spec_type", "kinds", "server/options/specs.py"),
)
QUOTED = ("0001-kv-layout-as-llama-server", "0004-one-step-thread-and-a-mailbox", "0007-prompt-states-on-disk")
OTHER = (
    "Tell me a story about a lighthouse keeper who finds a bottle on the beach.",
    "Explain how rain forms, to a child of ten.",
    "List ten things to pack for a week in the mountains, and say why.",
)
HEROES = ("fox", "lamb", "dragon", "cat", "dog", "bear", "frog", "mouse")


class ScriptedRunner:
    """A runner whose samplers return the tokens of scripts. All computations still take place."""

    def __init__(self, runner: LlamaRunner, scripts: dict[tuple[int, ...], list[int]]) -> None:
        self._runner = runner
        self._scripts = scripts
        self._tokens: dict[int, Iterator[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> NativeSampler:
        """Return a sampler with the script of `prompt`."""
        sampler = self._runner.sampler(params, prompt)
        self._tokens[id(sampler)] = iter(self._scripts[tuple(prompt)])
        return sampler

    def sample(self, output: int, sampler: NativeSampler) -> int:
        """Sample, and return the script's next token instead."""
        self._runner.sample(output, sampler)
        return next(self._tokens[id(sampler)])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. ``arms`` are the values of ``--spec-type`` that are compared with none."""

    name: str
    model: Path
    draft: Path | None
    arms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: tokens per second of all streams, and draft tokens."""

    rate: float
    cpu_s: float  # CPU seconds of the process per token, after the last prompt
    n_drafted: int
    n_accepted: int


def edited(tokens: Sequence[int], rng: random.Random, n_vocab: int) -> list[int]:
    """Return `tokens` with an edit about every 40 tokens."""
    reply: list[int] = []
    for token in tokens:
        choice = rng.random() * 40
        if choice < 0.5:
            reply.append(rng.randrange(300, n_vocab))
        elif choice < 0.75:
            reply += [token, rng.randrange(300, n_vocab)]
        elif choice >= 1.0:
            reply.append(token)
    return reply


def script(name: str, rng: random.Random, n_vocab: int, n_prompt: int, n_tokens: int) -> tuple[list[int], list[int]]:
    """Return a prompt and its scripted reply."""
    words = [rng.randrange(300, n_vocab) for _ in range(200)]
    source = words if name == "words" else range(300, n_vocab)
    prompt = [rng.choice(source) for _ in range(n_prompt)]
    reply = edited(prompt, rng, n_vocab) if name == "edit" else [rng.choice(source) for _ in range(2 * n_tokens)]
    return prompt, [*reply, *(rng.choice(source) for _ in range(n_tokens))]


def real_prompt(weights: Weights, name: str, number: int) -> list[int]:
    if name == "file":
        old, new, path = RENAMED[number % len(RENAMED)]
        source = (ROOT / path).read_text(encoding="utf-8")[:2400]
        task = f"Here is a file:\n```python\n{source}```\nRepeat the whole file, with `{old}` renamed to `{new}`."
    elif name == "quote":
        text = (ROOT / "docs" / "adr" / f"{QUOTED[number % len(QUOTED)]}.md").read_text(encoding="utf-8")
        task = f"Repeat this text word by word:\n\n{text}"
    else:
        task = OTHER[number % len(OTHER)]
    text = f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"
    return weights.vocab.tokenize(text, add_special=True, parse_special=True)


def chat_prompt(weights: Weights, rng: random.Random) -> list[int]:
    task = rng.choice(CHAT_PROMPTS).format(rng.choice(HEROES))
    text = f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"
    return weights.vocab.tokenize(text, add_special=True, parse_special=True)


class Arm:
    """A loaded model with one value of ``--spec-type``."""

    def __init__(self, scenario: Scenario, spec_type: str, n_streams: int, options: argparse.Namespace) -> None:
        n_ctx_seq = -(-(max(options.prompt, 1200) + 2 * options.tokens + 64) // 256) * 256
        native = LoadParams(
            n_ctx=n_ctx_seq * n_streams, n_parallel=n_streams, n_threads=options.threads, kv_unified=False, warmup=False
        )
        draft = scenario.draft if "draft" in spec_type else None
        self.scenario, self.spec_type = scenario, spec_type
        self.n_prompt, self.n_tokens = options.prompt, options.tokens
        self.params = EngineParams(spec_type=spec_type)
        spec = ModelSpec(
            "bench",
            scenario.model,
            native=native,
            engine=self.params,
            draft=DraftFile(draft, replace(native, swa_full=True)) if draft is not None else None,
        )
        self.weights = LlamaLoader().load(spec, lambda _fraction: True)

    async def run(self, n_streams: int, seed: int, n_waves: int) -> Measured:
        """Run `n_streams` parallel streams `n_waves` times in a new engine."""
        rng, scripts, prompts = random.Random(seed), {}, []
        sampling = replace(GREEDY, ignore_eos=self.scenario.name not in REAL)
        n_vocab = self.weights.vocab.n_tokens - 8
        for i in range(n_streams * n_waves):
            if self.scenario.name in REAL:
                prompts.append(real_prompt(self.weights, self.scenario.name, seed * n_streams * n_waves + i))
            elif self.scenario.name == "chat":
                prompts.append(chat_prompt(self.weights, rng))
            else:
                prompt, reply = script(self.scenario.name, rng, n_vocab, self.n_prompt, self.n_tokens)
                scripts[tuple(prompt)] = reply
                prompts.append(prompt)
        runner: Any = self.weights.runner()
        engine = Engine(
            [ScriptedRunner(runner, scripts) if scripts else runner], self.params, asyncio.get_running_loop()
        )
        try:
            waves, cpu_s = [], 0.0
            for i in range(n_waves):
                waves.append(
                    await asyncio.gather(*(_generate(engine, p, self.n_tokens, sampling) for p in prompts[i::n_waves]))
                )
                cpu_s += time.process_time() - max(started for _, started in waves[-1])
        finally:
            await engine.close()
        timings = [[reply.timings for reply, _ in wave] for wave in waves]
        seconds = sum(max(t.predicted_ms for t in wave) for wave in timings) / 1e3
        every = [t for wave in timings for t in wave]
        return Measured(
            sum(t.predicted_n for t in every) / seconds,
            cpu_s / sum(t.predicted_n for t in every),
            sum(t.draft_n for t in every),
            sum(t.draft_n_accepted for t in every),
        )


async def _generate(
    engine: Engine, prompt: list[int], n_tokens: int, sampling: SamplingParams
) -> tuple[Finished, float]:
    """Run a request. Returns its last event, and the CPU time of the process at the end of the prefill."""
    done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    started = 0.0

    def sink(events: list[Event]) -> None:
        nonlocal started
        for event in events:
            if isinstance(event, Started):
                started = time.process_time()
            if isinstance(event, Failed):
                done.set_exception(event.error)
            elif isinstance(event, Finished):
                done.set_result(event)

    engine.submit(Request("bench", prompt, sampling=sampling, max_tokens=n_tokens), sink)
    return await done, started


def scenarios(real: Path | None) -> list[Scenario]:
    """Return the scenarios. Generates their models if they do not exist."""
    MODELS.mkdir(exist_ok=True)
    bench, slow, slow_draft = MODELS / "bench-135m.gguf", MODELS / "demo-slow.gguf", MODELS / "demo-draft-slow.gguf"
    if not bench.exists():
        write_gguf(bench, SHAPES["135m"])
    for source, target, n_ff in (("demo.gguf", slow, 16384), ("demo-draft.gguf", slow_draft, 12288)):
        if not target.exists():
            inflate(ROOT / "models" / source, target, n_ff)
    return [
        Scenario("edit", bench, None, (LOOKUP,)),
        Scenario("random", bench, None, (LOOKUP,)),
        Scenario("words", bench, None, (LOOKUP,)),
        Scenario("chat", slow, slow_draft, (LOOKUP, "draft-simple", f"{LOOKUP},draft-simple")),
        *(Scenario(name, real, None, (LOOKUP,)) for name in REAL if real is not None),
    ]


def compare(scenario: Scenario, n_streams: int, options: argparse.Namespace) -> list[str]:
    """Measure a scenario. Returns a table row for each arm."""
    arms = [Arm(scenario, kind, n_streams, options) for kind in ("none", *scenario.arms)]
    runs_by_type: dict[str, list[Measured]] = {arm.spec_type: [] for arm in arms}
    for number in range(options.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            runs_by_type[arm.spec_type].append(asyncio.run(arm.run(n_streams, number, options.waves)))
    for arm in arms:
        arm.weights.close()
    plain, rows = runs_by_type.pop("none"), []
    for kind, runs in runs_by_type.items():
        ratios = sorted(run.rate / base.rate for run, base in zip(runs, plain, strict=True))
        work = statistics.median(base.cpu_s / run.cpu_s for run, base in zip(runs, plain, strict=True))
        n, n_accepted = sum(r.n_drafted for r in runs), sum(r.n_accepted for r in runs)
        rows.append(
            f"| {scenario.name} | {n_streams} | {kind} | {statistics.median(r.rate for r in plain):.1f} | "
            f"{statistics.median(r.rate for r in runs):.1f} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {work:.2f} | {n} | {n_accepted / n if n else 0.0:.0%} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", help="comma-separated names")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waves", type=int, default=2, help="of streams per engine, whose n-gram index starts empty")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per reply")
    parser.add_argument("--prompt", type=int, default=600, help="tokens per prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--real", type=Path, help="GGUF of a real model, for file, quote and other")
    options = parser.parse_args()
    names = options.scenario.split(",") if options.scenario else None
    print("| scenario | streams | spec-type | tok/s without | with | ratio | by CPU time | drafted | accepted |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for scenario in scenarios(options.real):
        if names is None or scenario.name in names:
            for n_streams in options.streams:
                print("\n".join(compare(scenario, n_streams, options)), flush=True)


if __name__ == "__main__":
    main()
