"""The demo model, frozen: its weights from the GGUF file, its tokens from llama.cpp."""

from functools import cache
from pathlib import Path

import gguf
import llama_cpp
import torch
from network import Network, Shape
from torch import Tensor
from torch.nn import functional as F

MODEL = Path(__file__).parent.parent / "demo.gguf"
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


def _gguf_name(name: str) -> str:
    if name.startswith("blocks."):
        _, i, rest = name.split(".", 2)
        return f"blk.{i}.{_BLOCK_NAMES[rest.removesuffix('.weight')]}.weight"
    return {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def demo_network(path: Path = MODEL) -> Network:
    """The network of demo.gguf, without gradients of its weights."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    n_vocab = int(tensors["token_embd.weight"].shape[1])
    network = Network(Shape(n_vocab))
    weights = {
        name: torch.tensor(tensors[_gguf_name(name)].data, dtype=torch.float32).reshape(value.shape)
        for name, value in network.state_dict().items()
    }
    network.load_state_dict(weights)
    return network.requires_grad_(False)


@cache
def vocabulary(path: Path = MODEL) -> llama_cpp.Llama:
    """The tokenizer of demo.gguf."""
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def tokens_of(text: str) -> list[int]:
    """The text's tokens, control tokens read as such."""
    return vocabulary().tokenize(text.encode(), add_bos=False, special=True)


def hidden_of(network: Network, inputs: Tensor) -> Tensor:
    """Embeddings (batch, token, dim) to hidden states, causally."""
    x = inputs
    rotation = network.rotation[:, : inputs.shape[1]]
    for block in network.blocks:
        x = block(x, rotation, None)
    return network.norm(x)


def scores(network: Network, hidden: Tensor) -> Tensor:
    """Scores of the next token."""
    return F.linear(hidden, network.embedding.weight)
