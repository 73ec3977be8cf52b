"""The audio encoder, as in Qwen3-ASR: three convolutions, a ViT with 13 positions per second, an MLP."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from encoder import Block, BlockShape
from torch import Tensor, nn
from torch.nn import functional as F

FRAMES = 100  # per second
TOKENS = 13  # per second


@dataclass(frozen=True, kw_only=True)
class Shape(BlockShape):
    """Dimensions of the audio encoder: mel bands, and channels of the convolutions before the blocks."""

    n_mels: int
    channels: int


SHAPE = Shape(n_mels=64, channels=16, dim=128, n_layer=2, n_head=2, dim_ff=256, dim_mlp=128, dim_out=192, norm_eps=1e-5)


class AudioEncoder(nn.Module):
    """Maps mel frames to hidden states, and these to the language model's embeddings (`project`)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        sizes = (1, shape.channels, shape.channels, shape.channels)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(sizes))
        self.conv_out = nn.Linear(shape.channels * shape.n_mels // 8, shape.dim, bias=False)
        self.positions = nn.Parameter(torch.randn(TOKENS, shape.dim) * 0.1)
        self.blocks = nn.ModuleList(Block(shape, F.gelu) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.dim, shape.norm_eps)
        self.mlp_in = nn.Linear(shape.dim, shape.dim_mlp)
        self.mlp_out = nn.Linear(shape.dim_mlp, shape.dim_out)

    def forward(self, mel: Tensor) -> Tensor:
        """Map whole seconds, (batch, mel, frame), to hidden states, (batch, token, dim)."""
        batch, n_mels, n_frames = mel.shape
        x = mel.view(batch, n_mels, -1, FRAMES).transpose(1, 2).reshape(-1, 1, n_mels, FRAMES)
        for conv in self.convs:
            x = F.gelu(conv(x))
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2)) + self.positions
        x = x.reshape(batch, n_frames // FRAMES * TOKENS, -1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def project(self, hidden: Tensor) -> Tensor:
        """Map hidden states to embeddings, (batch, token, dim_out)."""
        return self.mlp_out(F.gelu(self.mlp_in(hidden)))
