"""Muon (Jordan et al. 2024), momentum with orthogonalized updates, for the CPU."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(updates: Tensor, dtype: torch.dtype = torch.float32, n_iterations: int = 5) -> Tensor:
    """Move the singular values of each matrix of (n, rows, columns) near 1, by Newton-Schulz in `dtype`."""
    a, b, c = _COEFFICIENTS
    tall = updates.shape[1] > updates.shape[2]
    x = updates.mT if tall else updates
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(n_iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(updates.dtype)


class Muon(torch.optim.Optimizer):
    """The Muon optimizer for matrices. Matrices of the same shape are updated together."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dtype = dtype
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the matrices once."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for shape, matrices in alike.items():
                momenta = torch.stack([self._momentum(matrix, group["momentum"]) for matrix in matrices])
                updates = orthogonal(momenta, self.dtype)
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        state = self.state[matrix]
        if "average" not in state:
            state["average"] = torch.zeros_like(matrix)
        average = state["average"]
        average.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(average, momentum)
