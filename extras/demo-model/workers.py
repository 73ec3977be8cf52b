"""Gradients from several processes of one thread each: on shared cores, none waits long for another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from batches import IGNORED, Batch
from network import Network
from torch import Tensor, multiprocessing
from torch.nn import functional as F


def loss_of(network: torch.nn.Module, batch: Batch) -> Tensor:
    """The weighted sum of the losses of the tokens to learn."""
    inputs, targets, weights = batch
    hidden = network(inputs)
    learnt = targets != IGNORED
    logits = F.linear(hidden[learnt], network.embedding.weight)  # type: ignore[union-attr]
    return F.cross_entropy(logits, targets[learnt], reduction="none") @ weights[learnt]


def _work(network: Network, gradients: list[Tensor], todo, done, compiled: bool) -> None:  # type: ignore[no-untyped-def]
    torch.set_num_threads(1)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        parameter.grad = gradient
    run = torch.compile(network, dynamic=True) if compiled else network
    while (item := todo.get()) is not None:
        arrays, scale = item
        inputs, targets, weights = map(torch.from_numpy, arrays)
        for side in (0, 1):
            torch._dynamo.mark_dynamic(inputs, side)
        loss = loss_of(run, (inputs, targets, weights)) * scale
        loss.backward()
        done.put(loss.item())


class Workers:
    """Processes that share the network's weights and take the next batch when they are free."""

    def __init__(self, network: Network, n_workers: int, compiled: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.network = network.share_memory()
        self.todo, self.done = context.SimpleQueue(), context.SimpleQueue()
        self.gradients = [[torch.zeros_like(p).share_memory_() for p in network.parameters()] for _ in range(n_workers)]
        self.processes = [
            context.Process(target=_work, args=(network, own, self.todo, self.done, compiled), daemon=True)
            for own in self.gradients
        ]
        for process in self.processes:
            process.start()

    def submit(self, batches: Sequence[Batch]) -> None:
        """Hand out one step's batches."""
        weight = sum(float(weights[targets != IGNORED].sum()) for _, targets, weights in batches)
        for batch in sorted(batches, key=lambda batch: -batch[0].numel()):
            self.todo.put((tuple(part.numpy() for part in batch), 1 / weight))

    @torch.no_grad()
    def collect(self, n_batches: int) -> float:
        """Wait for the step's batches, set the network's gradients, return the mean loss."""
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
def started(network: Network, n_workers: int, compiled: bool) -> Iterator[Workers]:
    """Workers for a while."""
    workers = Workers(network, n_workers, compiled)
    try:
        yield workers
    finally:
        workers.close()
