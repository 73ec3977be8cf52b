"""Compute gradients in several processes with one thread each, or in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import torch
from batches import IGNORED, Batch
from network import Network
from torch import Tensor, multiprocessing
from torch.nn import functional as F

# Conversations about images and audio per batch of text, and the weight of their mean loss.
SEEN_ROWS, SEEN_SHARE = 3, 0.15


def loss_of(network: torch.nn.Module, batch: Batch) -> Tensor:
    """Return the weighted sum of the losses of trained tokens."""
    inputs, targets, weights = batch
    hidden = network(inputs)
    learnt = targets != IGNORED
    logits = F.linear(hidden[learnt], network.embedding.weight)  # type: ignore[union-attr]
    return F.cross_entropy(logits, targets[learnt], reduction="none") @ weights[learnt]


class Seen:
    """Conversations about images and audio with a projector's embeddings (`extras/demo-vision/replay.py`).

    Without them, a model whose weights change no longer understands the projector's embeddings.
    """

    def __init__(self, path: Path) -> None:
        stored = torch.load(path)
        self.given, self.rows = stored["given"], stored["rows"]
        self.rng = Random()

    def loss(self, network: Network) -> Tensor:
        """Return the mean loss of the replies of a random sample."""
        rows = self.rng.sample(self.rows, SEEN_ROWS)
        lengths = [len(before) + len(self.given[i]) + len(after) for i, before, after, _ in rows]
        x = torch.zeros(len(rows), max(lengths), network.shape.dim)
        targets = torch.full((len(rows), max(lengths)), IGNORED)
        for row, (i, before, after, learnt) in enumerate(rows):
            first, last = network.embedding(torch.tensor(before)), network.embedding(torch.tensor(after))
            whole = torch.cat([first, self.given[i].float(), last])
            x[row, : len(whole)] = whole
            wanted = [token if learn else IGNORED for token, learn in zip(after, learnt, strict=True)]
            start = len(whole) - len(after) - 1
            targets[row, start : len(whole) - 1] = torch.tensor(wanted)
        trained = targets != IGNORED
        logits = F.linear(network.read(x)[trained], network.embedding.weight)
        return F.cross_entropy(logits, targets[trained])


class Gradients:
    """Accumulates the gradients of a step in a network, which may be compiled."""

    def __init__(self, network: Network, compiled: bool, bf16: bool, seen: Path | None) -> None:
        self.network, self.bf16 = network, bf16
        self.run = torch.compile(network, dynamic=True) if compiled else network
        self.replayed = Seen(seen) if seen else None

    def add(self, batch: Batch, scale: float) -> float:
        """Add the gradients of a batch. Returns its loss."""
        for side in (0, 1):
            torch._dynamo.mark_dynamic(batch[0], side)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = loss_of(self.run, batch) * scale
            whole = loss + SEEN_SHARE * self.replayed.loss(self.network) if self.replayed else loss
        whole.backward()
        return loss.item()


def _work(  # type: ignore[no-untyped-def]
    network: Network, gradients: list[Tensor], todo, done, compiled: bool, bf16: bool, seen: Path | None
) -> None:
    torch.set_num_threads(1)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        parameter.grad = gradient
    own = Gradients(network, compiled, bf16, seen)
    while (item := todo.get()) is not None:
        arrays, scale = item
        inputs, targets, weights = map(torch.from_numpy, arrays)
        done.put(own.add((inputs, targets, weights), scale))


def _scale(batches: Sequence[Batch]) -> float:
    """Return the factor that turns the weighted sum of the batches' losses into their mean."""
    return 1 / sum(float(weights[targets != IGNORED].sum()) for _, targets, weights in batches)


class Alone:
    """Computes a step's gradients in this process."""

    def __init__(self, network: Network, compiled: bool, bf16: bool, seen: Path | None) -> None:
        self.own = Gradients(network, compiled, bf16, seen)
        self.batches: Sequence[Batch] = ()

    def submit(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a step."""
        self.batches = batches

    def collect(self, n_batches: int) -> float:
        """Set the network's gradients and return the mean loss."""
        for parameter in self.own.network.parameters():
            parameter.grad = None
        scale = _scale(self.batches)
        return sum(self.own.add(batch, scale) for batch in self.batches[:n_batches])

    def close(self) -> None:
        """Do nothing."""


class Workers:
    """Processes that share the network's weights and take the next batch when they are idle."""

    def __init__(self, network: Network, n_workers: int, compiled: bool, bf16: bool, seen: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.network = network.share_memory()
        self.todo, self.done = context.SimpleQueue(), context.SimpleQueue()
        self.gradients = [[torch.zeros_like(p).share_memory_() for p in network.parameters()] for _ in range(n_workers)]
        self.processes = [
            context.Process(target=_work, args=(network, own, self.todo, self.done, compiled, bf16, seen), daemon=True)
            for own in self.gradients
        ]
        for process in self.processes:
            process.start()

    def submit(self, batches: Sequence[Batch]) -> None:
        """Distribute the batches of a step."""
        for batch in sorted(batches, key=lambda batch: -batch[0].numel()):
            self.todo.put((tuple(part.numpy() for part in batch), _scale(batches)))

    @torch.no_grad()
    def collect(self, n_batches: int) -> float:
        """Wait for the step's batches, set the network's gradients, and return the mean loss."""
        loss = sum(self.done.get() for _ in range(n_batches))
        for parameter, *parts in zip(self.network.parameters(), *self.gradients, strict=True):
            parameter.grad = torch.stack(parts).sum(0)
            for part in parts:
                part.zero_()
        return loss

    def close(self) -> None:
        """End the processes."""
        for _ in self.processes:
            self.todo.put(None)
        for process in self.processes:
            process.join()


@contextmanager
def started(
    network: Network, n_workers: int, compiled: bool, bf16: bool = False, seen: Path | None = None
) -> Iterator[Workers | Alone]:
    """Run workers during the block. Without workers, this process computes the gradients."""
    workers: Workers | Alone = Alone(network, compiled, bf16, seen)
    if n_workers:
        workers = Workers(network, n_workers, compiled, bf16, seen)
    try:
        yield workers
    finally:
        workers.close()
