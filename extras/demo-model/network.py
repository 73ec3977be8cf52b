"""The network: Llama (RMSNorm, RoPE on adjacent pairs, grouped-query attention, SwiGLU), tied embeddings."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_BLOCK_NAMES = {
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "ff_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True)
class Shape:
    """Dimensions of a network."""

    n_vocab: int
    dim: int = 192
    n_layer: int = 6
    n_head: int = 6
    n_head_kv: int = 3
    dim_ff: int = 512
    n_ctx: int = 4096
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def dim_head(self) -> int:
        """Width of an attention head."""
        return self.dim // self.n_head


def shape_of(name: str, n_vocab: int) -> Shape:
    """Return the shape of one of the project's models."""
    if name == "demo":
        return Shape(n_vocab)
    small = Shape(n_vocab, dim=96, n_layer=2, n_head=3, n_head_kv=3, dim_ff=256)
    return {"draft": small, "embed": small, "rerank": replace(small, n_layer=3)}[name]


def gguf_name(name: str) -> str:
    """Return the tensor's name in GGUF."""
    if name.startswith("blocks."):
        _, i, rest = name.split(".", 2)
        return f"blk.{i}.{_BLOCK_NAMES[rest.removesuffix('.weight')]}.weight"
    return {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def rotations(shape: Shape, n_tokens: int) -> Tensor:
    """Return RoPE's angles as cosine and sine, (2, n_tokens, dim_head / 2)."""
    powers = torch.arange(0, shape.dim_head, 2).float() / shape.dim_head
    angles = torch.outer(torch.arange(n_tokens).float(), shape.rope_base**-powers)
    return torch.stack([angles.cos(), angles.sin()])


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each adjacent pair of x (batch, head, token, dim_head) by its position's angle."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = rotation
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    """Self-attention, causal without a mask."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.n_head_kv * shape.dim_head
        self.q = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k = nn.Linear(shape.dim, kv, bias=False)
        self.v = nn.Linear(shape.dim, kv, bias=False)
        self.o = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, token, dim) to the same."""
        batch, n, _ = x.shape
        q = self.q(x).view(batch, n, -1, self.shape.dim_head).transpose(1, 2)
        k = self.k(x).view(batch, n, -1, self.shape.dim_head).transpose(1, 2)
        v = self.v(x).view(batch, n, -1, self.shape.dim_head).transpose(1, 2)
        q, k = rotated(q, rotation), rotated(k, rotation)
        groups = self.shape.n_head // self.shape.n_head_kv
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o(mixed.transpose(1, 2).reshape(batch, n, -1))


class Block(nn.Module):
    """Attention and feed-forward with pre-normalization and residual connections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.attn = Attention(shape)
        self.ff_norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.gate = nn.Linear(shape.dim, shape.dim_ff, bias=False)
        self.up = nn.Linear(shape.dim, shape.dim_ff, bias=False)
        self.down = nn.Linear(shape.dim_ff, shape.dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, token, dim) to the same."""
        x = x + self.attn(self.attn_norm(x), rotation, mask)
        h = self.ff_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Network(nn.Module):
    """Maps token ids to hidden states, and these to scores of the next token (`logits`)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.n_vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.register_buffer("rotation", rotations(shape, shape.n_ctx), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                narrow = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.n_layer) ** 0.5 if narrow else 0.04)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map (batch, token) to (batch, token, dim). mask: allowed attention, broadcast to (batch, head, to, from)."""
        return self.read(self.embedding(tokens), mask)

    def read(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map embeddings of tokens or media, (batch, token, dim), to hidden states of the same shape."""
        rotation = self.rotation[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x, rotation, mask)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map (..., dim) to (..., n_vocab)."""
        return F.linear(hidden, self.embedding.weight)
