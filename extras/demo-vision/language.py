"""The frozen demo model: weights from the GGUF file, tokens from llama.cpp."""

from functools import cache
from pathlib import Path

import gguf
import llama_cpp
import torch
from network import Network, Shape, gguf_name

MODEL = Path(__file__).parents[2] / "models" / "demo.gguf"


def demo_network(path: Path = MODEL) -> Network:
    """Return the network of demo.gguf with frozen weights."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    n_vocab = int(tensors["token_embd.weight"].shape[1])
    network = Network(Shape(n_vocab))
    weights = {
        name: torch.tensor(tensors[gguf_name(name)].data, dtype=torch.float32).reshape(value.shape)
        for name, value in network.state_dict().items()
    }
    network.load_state_dict(weights)
    return network.requires_grad_(False)


@cache
def vocabulary(path: Path = MODEL) -> llama_cpp.Llama:
    """Return the tokenizer of demo.gguf."""
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def tokens_of(text: str) -> list[int]:
    """Return the text's tokens. Control tokens are parsed."""
    return vocabulary().tokenize(text.encode(), add_bos=False, special=True)
