"""The training of both encoders: optimizers and checkpoints."""

import time
from dataclasses import asdict
from pathlib import Path

import torch
from audio_encoder import AudioEncoder
from encoder import Encoder
from muon import Muon
from torch import nn


class Training:
    """Trains an encoder and the readers of its hidden states: Muon for the blocks' matrices, AdamW for the rest.

    ``step``: the number of completed steps.
    """

    def __init__(self, path: Path, encoder: Encoder | AudioEncoder, readers: nn.Module, rate: float) -> None:
        """Continue from the checkpoint at `path` if it exists."""
        self._path, self._encoder, self._readers = path, encoder, readers
        matrices = [p for p in encoder.blocks.parameters() if p.ndim == 2]
        ids = {id(p) for p in matrices}
        rest = [p for p in (*encoder.parameters(), *readers.parameters()) if id(p) not in ids]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=rate),
            torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),  # the rate is set before each step
        ]
        self.step = 0
        if path.exists():
            state = torch.load(path)
            encoder.load_state_dict(state["encoder"])
            readers.load_state_dict(state["readers"])
            for optimizer, stored in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(stored)
            self.step = state["step"]
        self._saved = time.monotonic()

    def update(self, rates: tuple[float, float], share: float) -> None:
        """Make a step with the current gradients, at `share` of the rates."""
        nn.utils.clip_grad_norm_([*self._encoder.parameters(), *self._readers.parameters()], 2.0)
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def save(self, *, now: bool, every_s: float = 100.0) -> None:
        """Write the checkpoint atomically, if `now` or `every_s` has passed."""
        if not now and time.monotonic() - self._saved < every_s:
            return
        state = {"shape": asdict(self._encoder.shape), "encoder": self._encoder.state_dict(), "step": self.step}
        state |= {"readers": self._readers.state_dict()}
        state |= {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        torch.save(state, self._path.with_suffix(".tmp"))
        self._path.with_suffix(".tmp").replace(self._path)
        self._saved = time.monotonic()
