"""The image encoder and projector: a SigLIP-like ViT, then Janus-Pro's MLP, computed as in libmtmd."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MEAN = STD = 0.5


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """Dimensions of an encoder's blocks and projector. `dim_out`: the width of the language model."""

    dim: int
    n_layer: int
    n_head: int
    dim_ff: int
    dim_mlp: int
    dim_out: int
    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class Shape(BlockShape):
    """Dimensions of the image encoder. `image` and `patch` are sides in pixels."""

    image: int
    patch: int

    @property
    def n_tokens(self) -> int:
        """The number of patches, and of embeddings, of an image."""
        return (self.image // self.patch) ** 2


SHAPE = Shape(image=96, patch=12, dim=192, n_layer=5, n_head=3, dim_ff=512, dim_mlp=192, dim_out=192, norm_eps=1e-6)


class Block(nn.Module):
    """Bidirectional attention and feed-forward with pre-normalization and residual connections."""

    def __init__(self, shape: BlockShape, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.n_head, self.activation = shape.n_head, activation
        self.norm_1 = nn.LayerNorm(shape.dim, shape.norm_eps)
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)
        self.norm_2 = nn.LayerNorm(shape.dim, shape.norm_eps)
        self.up = nn.Linear(shape.dim, shape.dim_ff)
        self.down = nn.Linear(shape.dim_ff, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, dim) to the same."""
        batch, n, dim = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        # For so few tokens, this is faster on a CPU than the fused kernel.
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1).to(v.dtype)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, n, dim))
        return x + self.down(self.activation(self.up(self.norm_2(x))))


class Encoder(nn.Module):
    """Maps pixels to hidden states of patches, and these to the language model's embeddings (`project`)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.patches = nn.Linear(3 * shape.patch**2, shape.dim)
        self.positions = nn.Parameter(torch.randn(shape.n_tokens, shape.dim) * 0.3)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.dim, shape.norm_eps)
        self.mlp_in = nn.Linear(shape.dim, shape.dim_mlp)
        self.mlp_out = nn.Linear(shape.dim_mlp, shape.dim_out)
        for name, parameter in self.named_parameters():
            if name.startswith("blocks") and parameter.ndim == 2:
                narrow = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.04 / (2 * shape.n_layer) ** 0.5 if narrow else 0.06)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def split(self, pixels: Tensor) -> Tensor:
        """Split (batch, height, width, 3) bytes into patches, (batch, token, 3 * patch * patch), channel first."""
        n, side = pixels.shape[1] // self.shape.patch, self.shape.patch
        x = pixels.view(-1, n, side, n, side, 3).permute(0, 1, 3, 5, 2, 4)
        return (x.reshape(len(pixels), n * n, -1).float() / 255 - MEAN) / STD

    def forward(self, pixels: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map bytes to hidden states, (batch, token, dim): those after the third block, and the last.

        kept: the patches of each image to use, (batch, token), when training with a part of them.
        """
        pixel_patches, positions = self.split(pixels), self.positions
        if kept is not None:
            pixel_patches, positions = (
                pixel_patches.gather(1, kept[:, :, None].expand(-1, -1, pixel_patches.shape[2])),
                positions[kept],
            )
        x = self.patches(pixel_patches) + positions
        early = x
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 2:
                early = x
        return early, self.norm(x)

    def project(self, hidden: Tensor) -> Tensor:
        """Map hidden states to embeddings, (batch, token, dim_out)."""
        return self.mlp_out(F.silu(self.mlp_in(hidden)))
