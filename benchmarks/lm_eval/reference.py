"""Compute the figures of an lm-evaluation-harness run again with llama-cpp-python's `Llama`.

``python -m benchmarks.lm_eval.reference MODEL.gguf FOLDER``: FOLDER has the harness' ``samples_*.jsonl`` and
``results_*.json`` (``--output_path FOLDER --log_samples``). Each log-likelihood is computed again from the logits of
`Llama`, one request at a time, and compared. Then the metrics are compared. See ``benchmarks/experiments.md``.
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
    """A log-likelihood, and whether each token was the most probable one."""

    logprob: float
    greedy: bool


class Reference:
    """Log-likelihoods from `Llama`, with the harness' rules for which tokens are context and which are scored."""

    def __init__(self, model: Path, n_threads: int) -> None:
        options: dict[str, Any] = {"verbose": False, "logits_all": True, "n_ctx": 2048, "flash_attn": False}
        self._llama = Llama(str(model), n_threads=n_threads, n_threads_batch=n_threads, **options)

    def continuation(self, context: str, continuation: str) -> Scored:
        """Score `continuation` after `context`. Trailing spaces of the context belong to the continuation."""
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        return self._score(self._tokens(bare + continuation), len(self._tokens(bare)))

    def rolling(self, text: str) -> Scored:
        """Score `text` after BOS, or after EOS for a vocabulary without BOS."""
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
    """Return the logged samples of a task."""
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def requests(sample: dict[str, Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """Yield the arguments and the response of each request of a sample."""
    for arguments, (response,) in zip(sample["arguments"].values(), sample["resps"], strict=True):
        yield list(arguments.values()), response if isinstance(response, list) else [response, None]


def metrics(task: str, scored_samples: list[tuple[dict[str, Any], list[Scored]]]) -> dict[str, float]:
    """Compute the harness' metrics from log-likelihoods."""
    if task == "local_facts":
        right, right_by_byte = [], []
        for sample, scored in scored_samples:
            logprobs = [one.logprob for one in scored]
            by_byte = [p / len(choice) for p, choice in zip(logprobs, sample["doc"]["choices"], strict=True)]
            right.append(int(np.argmax(logprobs)) == sample["doc"]["answer"])
            right_by_byte.append(int(np.argmax(by_byte)) == sample["doc"]["answer"])
        return {"acc": fmean(right), "acc_norm": fmean(right_by_byte)}
    scores = [scored[0] for _, scored in scored_samples]
    if task == "local_words":
        return {"acc": fmean(s.greedy for s in scores), "perplexity": math.exp(-fmean(s.logprob for s in scores))}
    texts = [sample["doc"]["text"] for sample, _ in scored_samples]
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
    options = parser.parse_args()
    reference = Reference(options.model, options.threads)
    (path,) = options.folder.rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    print("| task | requests | largest difference of a log-likelihood | greedy the same | metric | here | `Llama` |")
    print("|---|---|---|---|---|---|---|")
    for task, found in results.items():
        scored_samples, differences, same = [], [], []
        for sample in samples(options.folder, task):
            scored = []
            for arguments, (logprob, greedy) in requests(sample):
                one = reference.rolling(*arguments) if greedy is None else reference.continuation(*arguments)
                scored.append(one)
                differences.append(abs(one.logprob - float(logprob)))
                if greedy is not None:
                    same.append(str(greedy) == str(one.greedy))
            scored_samples.append((sample, scored))
        for name, value in metrics(task, scored_samples).items():
            facts = f"| {task} | {len(differences)} | {max(differences):.1e} | {sum(same)} of {len(same)} "
            print(f"{facts}| {name} | {found[f'{name},none']:.4f} | {value:.4f} |")


if __name__ == "__main__":
    main()
