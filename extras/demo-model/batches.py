"""Token batches from the corpus. Samples of similar length are batched together to reduce padding."""

from collections.abc import Iterator
from functools import cache
from itertools import groupby, islice, takewhile
from random import Random

import torch
from corpus import Infill, Sample
from tokenizers import Tokenizer
from torch import Tensor

Encoded = tuple[list[int], list[float]]
Batch = tuple[Tensor, Tensor, Tensor]
IGNORED = -100
DECIDES = 3.0
COPIES = 2.0


def encoded(tokenizer: Tokenizer, sample: Sample | Infill) -> Encoded:
    """Return token ids and the loss weight of each; 0 for tokens that are not trained.

    The token that chooses between answer and call and the one that chooses the tool have the weight DECIDES, since many
    tokens follow from them. A tool's name and the first token of a parameter's name or value in a call have the weight
    COPIES, since a word has other tokens after a quotation mark than after a space.
    """
    ids: list[int] = []
    learnt: list[float] = []
    for text, learn in sample.parts():
        piece = tokenizer.encode(text).ids
        ids += piece
        learnt += _emphasis(tokenizer, piece) if learn else [0.0] * len(piece)
    return ids, learnt


def _emphasis(tokenizer: Tokenizer, answer: list[int]) -> list[float]:
    call, n_opening = tokenizer.token_to_id("<tool_call>"), len(tokenizer.encode('<tool_call>\n{"name": "').ids)
    decisions = {0, *(i + n_opening for i, token in enumerate(answer) if token == call)}
    if call not in answer:
        return [DECIDES if i in decisions else 1.0 for i in range(len(answer))]
    quotes = _quotes(tokenizer)
    begins = {i + 1 for i, token in enumerate(answer) if token in quotes}
    for start in decisions - {0}:  # the whole name, since names may share a prefix
        begins |= set(takewhile(lambda i: answer[i] not in quotes, range(start, len(answer))))
    return [DECIDES if i in decisions else COPIES if i in begins else 1.0 for i in range(len(answer))]


@cache
def _quotes(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that end with a quotation mark."""
    return frozenset(i for token, i in tokenizer.get_vocab().items() if token.endswith('"'))


def answer_weights(learnt: list[float]) -> list[float]:
    """Divide each token's weight by the square root of the number of tokens of its answer."""
    weights: list[float] = []
    for _, run in groupby(learnt, key=bool):
        answer = list(run)
        weights += [emphasis * len(answer) ** -0.5 for emphasis in answer]
    return weights


def collated(rows: list[Encoded]) -> Batch:
    """Return inputs, targets and weights, (row, token). Targets that are not trained are IGNORED.

    The weights of an answer sum to about the square root of its number of tokens, so that stories do not outweigh short
    answers.
    """
    width = max(len(ids) for ids, _ in rows) - 1
    n_rows = max(2, len(rows))  # a single row would cause another compilation
    inputs = torch.zeros(n_rows, width, dtype=torch.long)
    targets = torch.full((n_rows, width), IGNORED)
    weights = torch.zeros(n_rows, width)
    for row, (ids, learnt) in enumerate(rows):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        wanted = [token if learn > 0 else IGNORED for token, learn in zip(ids[1:], learnt[1:], strict=True)]
        targets[row, : len(wanted)] = torch.tensor(wanted)
        weights[row, : len(wanted)] = torch.tensor(answer_weights(learnt)[1:])
    return inputs, targets, weights


def batches(
    samples: Iterator[Sample | Infill], tokenizer: Tokenizer, n_tokens: int, n_ctx: int, seed: int
) -> Iterator[Batch]:
    """Yield batches of about n_tokens, endlessly."""
    rng = Random(seed)
    while True:
        pool = [encoded(tokenizer, sample) for sample in islice(samples, 3000)]
        pool = sorted((row for row in pool if len(row[0]) <= n_ctx), key=lambda row: len(row[0]))
        parts: list[list[Encoded]] = [[]]
        for row in pool:
            if parts[-1] and len(row[0]) * (len(parts[-1]) + 1) > n_tokens:
                parts.append([])
            parts[-1].append(row)
        rng.shuffle(parts)
        yield from map(collated, parts)
