"""Token batches from the corpus: samples of like length together, so that little is padding."""

from collections.abc import Iterator
from itertools import groupby, islice
from random import Random

import torch
from corpus import Infill, Sample
from tokenizers import Tokenizer
from torch import Tensor

Encoded = tuple[list[int], list[bool]]
Batch = tuple[Tensor, Tensor, Tensor]
IGNORED = -100


def encoded(tokenizer: Tokenizer, sample: Sample | Infill) -> Encoded:
    """Token ids, and for each whether the model learns to write it."""
    ids: list[int] = []
    learnt: list[bool] = []
    for text, learn in sample.parts():
        piece = tokenizer.encode(text).ids
        ids += piece
        learnt += [learn] * len(piece)
    return ids, learnt


def answer_weights(learnt: list[bool]) -> list[float]:
    """For each token 1 over the root of the number of tokens in its run of learnt ones, or of ones that are not."""
    weights: list[float] = []
    for _, run in groupby(learnt):
        n_tokens = len(list(run))
        weights += [n_tokens**-0.5] * n_tokens
    return weights


def collated(rows: list[Encoded]) -> Batch:
    """Inputs, targets and weights, (row, token); targets that are not learnt are IGNORED.

    An answer's weights sum to the root of the number of its tokens: stories shall not drown short answers.
    """
    width = max(len(ids) for ids, _ in rows) - 1
    n_rows = max(2, len(rows))  # one row alone would be compiled anew
    inputs = torch.zeros(n_rows, width, dtype=torch.long)
    targets = torch.full((n_rows, width), IGNORED)
    weights = torch.zeros(n_rows, width)
    for row, (ids, learnt) in enumerate(rows):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        wanted = [token if learn else IGNORED for token, learn in zip(ids[1:], learnt[1:], strict=True)]
        targets[row, : len(wanted)] = torch.tensor(wanted)
        weights[row, : len(wanted)] = torch.tensor(answer_weights(learnt)[1:])
    return inputs, targets, weights


def batches(
    samples: Iterator[Sample | Infill], tokenizer: Tokenizer, n_tokens: int, n_ctx: int, seed: int
) -> Iterator[Batch]:
    """Batches of about n_tokens, without end."""
    rng = Random(seed)
    while True:
        pool = [encoded(tokenizer, sample) for sample in islice(samples, 3000)]
        pool = sorted((row for row in pool if len(row[0]) <= n_ctx), key=lambda row: len(row[0]))
        cut: list[list[Encoded]] = [[]]
        for row in pool:
            if cut[-1] and len(row[0]) * (len(cut[-1]) + 1) > n_tokens:
                cut.append([])
            cut[-1].append(row)
        rng.shuffle(cut)
        yield from map(collated, cut)
