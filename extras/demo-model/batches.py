"""Token batches from the corpus: samples of like length together, so that little is padding."""

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
    """Token ids, and for each how much the model learns to write it: 0 where it does not.

    The token that chooses between an answer and a call and the one that chooses the tool count DECIDES times: they are
    few among many that follow from them. A tool's name and what begins a parameter's name or a value in a call count
    COPIES times: behind a quotation mark a word is other tokens than behind the space where it was read.
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
    for start in decisions - {0}:  # the name to its end, since two names may begin alike
        begins |= set(takewhile(lambda i: answer[i] not in quotes, range(start, len(answer))))
    return [DECIDES if i in decisions else COPIES if i in begins else 1.0 for i in range(len(answer))]


@cache
def _quotes(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end in a quotation mark."""
    return frozenset(i for token, i in tokenizer.get_vocab().items() if token.endswith('"'))


def answer_weights(learnt: list[float]) -> list[float]:
    """Each token's emphasis over the root of the number of tokens of its answer."""
    weights: list[float] = []
    for _, run in groupby(learnt, key=bool):
        answer = list(run)
        weights += [emphasis * len(answer) ** -0.5 for emphasis in answer]
    return weights


def collated(rows: list[Encoded]) -> Batch:
    """Inputs, targets and weights, (row, token); targets that are not learnt are IGNORED.

    An answer's weights sum to about the root of the number of its tokens: stories shall not drown short answers.
    """
    width = max(len(ids) for ids, _ in rows) - 1
    n_rows = max(2, len(rows))  # one row alone would be compiled anew
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
