"""The same figures as a run of lm-evaluation-harness, by llama-cpp-python's own `Llama`.

``python -m benchmarks.lm_eval.reference MODEL.gguf FOLDER``: FOLDER has the harness' ``samples_*.jsonl`` and
``results_*.json`` (``--output_path FOLDER --log_samples``). Every log-likelihood is computed again from the logits of
`Llama`, one request at a time, and compared; then the metrics. See ``benchmarks/experiments.md``.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from llama_cpp import Llama


@dataclass(frozen=True, slots=True)
class Scored:
    """A log-likelihood and whether each of its tokens was the most probable one."""

    logprob: float
    greedy: bool


class Reference:
    """Log-likelihoods by `Llama`, with the harness' rules of what is context and what is scored."""

    def __init__(self, model: Path, n_threads: int) -> None:
        quiet: dict[str, Any] = {"verbose": False, "logits_all": True, "n_ctx": 2048, "flash_attn": False}
        self._llama = Llama(str(model), n_threads=n_threads, n_threads_batch=n_threads, **quiet)

    def continuation(self, context: str, continuation: str) -> Scored:
        """Of `continuation` behind `context`; spaces at the context's end belong to what follows."""
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        return self._score(self._tokens(bare + continuation), len(self._tokens(bare)))

    def rolling(self, text: str) -> Scored:
        """Of all of `text` behind the token that texts begin with, else that they end with."""
        first = next(token for token in (self._llama.token_bos(), self._llama.token_eos()) if token >= 0)
        return self._score([first, *self._tokens(text)], 1)

    def _tokens(self, text: str) -> list[int]:
        return self._llama.tokenize(text.encode(), add_bos=False, special=True)

    def _score(self, tokens: list[int], n_context: int) -> Scored:
        llama = self._llama
        llama.reset()  # type: ignore[no-untyped-call]
        llama.eval(tokens)
        scored = tokens[n_context:]
        logprobs = np.asarray(Llama.logits_to_logprobs(llama.scores[n_context - 1 : len(tokens) - 1]), np.float64)
        return Scored(
            sum(float(row[token]) for row, token in zip(logprobs, scored, strict=True)),
            all(int(row.argmax()) == token for row, token in zip(logprobs, scored, strict=True)),
        )


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """What the harness logged of one task."""
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def requests(sample: dict[str, Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """Arguments and response of each request of a sample."""
    for arguments, (response,) in zip(sample["arguments"].values(), sample["resps"], strict=True):
        yield list(arguments.values()), response if isinstance(response, list) else [response, None]


def metrics(task: str, answered: list[tuple[dict[str, Any], list[Scored]]]) -> dict[str, float]:
    """The harness' metrics out of log-likelihoods."""
    if task == "local_facts":
        right, right_by_byte = [], []
        for sample, scored in answered:
            found = [one.logprob for one in scored]
            by_byte = [f / len(choice) for f, choice in zip(found, sample["doc"]["choices"], strict=True)]
            right.append(int(np.argmax(found)) == sample["doc"]["answer"])
            right_by_byte.append(int(np.argmax(by_byte)) == sample["doc"]["answer"])
        return {"acc": fmean(right), "acc_norm": fmean(right_by_byte)}
    scores = [scored[0] for _, scored in answered]
    if task == "local_words":
        return {"acc": fmean(s.greedy for s in scores), "perplexity": math.exp(-fmean(s.logprob for s in scores))}
    texts = [sample["doc"]["text"] for sample, _ in answered]
    nats, n_bytes = -sum(s.logprob for s in scores), sum(len(text.encode()) for text in texts)
    n_words = sum(len(re.split(r"\s+", text)) for text in texts)
    return {
        "word_perplexity": math.exp(nats / n_words),
        "byte_perplexity": math.exp(nats / n_bytes),
        "bits_per_byte": nats / n_bytes / math.log(2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    reference = Reference(chosen.model, chosen.threads)
    (path,) = chosen.folder.rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    print("| task | requests | largest difference of a log-likelihood | greedy the same | metric | here | `Llama` |")
    print("|---|---|---|---|---|---|---|")
    for task, found in results.items():
        answered, differences, same = [], [], []
        for sample in samples(chosen.folder, task):
            scored = []
            for arguments, (logprob, greedy) in requests(sample):
                one = reference.rolling(*arguments) if greedy is None else reference.continuation(*arguments)
                scored.append(one)
                differences.append(abs(one.logprob - float(logprob)))
                if greedy is not None:
                    same.append(str(greedy) == str(one.greedy))
            answered.append((sample, scored))
        for name, value in metrics(task, answered).items():
            facts = f"| {task} | {len(differences)} | {max(differences):.1e} | {sum(same)} of {len(same)} "
            print(f"{facts}| {name} | {found[f'{name},none']:.4f} | {value:.4f} |")


if __name__ == "__main__":
    main()
