"""What a tiny file can be: `TinyModel`."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RERANK_PROMPT = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>\nRelevant:"
"""A rerank template: no Jinja, llama-server replaces the two names in braces (server-common.cpp)."""

Array = npt.NDArray[np.float32]
Arch = Literal[
    "llama",
    "qwen3",
    "qwen2vl",
    "gemma3",
    "mamba",
    "jamba",
    "glm4moe",
    "qwen35",
    "bert",
    "t5",
    "t5encoder",
    "dream",
    "unknown",
]
Pooling = Literal["none", "mean", "cls", "last", "rank"]
Fim = Literal["none", "file", "repo"]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Options of one file. ``n_vocab`` counts bytes, merges and specials; more than BPE finds is filled up."""

    arch: Arch = "llama"
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int = 400
    n_ctx: int = 2048
    n_swa: int = 32  # gemma3 only
    swa_pattern: int = 6  # gemma3 only: every how many layers the last one attends to everything
    n_expert: int = 0  # llama only; two are used for each token
    n_nextn: int = 0  # glm4moe and qwen35: MTP heads behind the layers, which guess from the last token alone
    depth: float = 1.0  # what attention and feed-forward add to a token's embedding; less makes it easier to guess
    tokenizer: Literal["bpe", "spm"] = "bpe"  # of those that generate; "spm": SentencePiece with bytes to fall back to
    seed: int = 1
    ftype: Literal["F32", "F16"] = "F32"
    chat_template: str | None = CHATML
    tool_use_template: str | None = None
    rerank_template: str | None = None
    fim: Fim = "file"  # "file": prefix, suffix and middle; "repo": also those between files
    pooling: Pooling | None = None  # None: the file says nothing
    causal: bool = True  # BERT never is
    nan_weights: bool = False

    @property
    def n_ff(self) -> int:
        return 2 * self.n_embd

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def heads_kv(self) -> list[int]:
        """KV heads of each layer; a layer of the hybrid without any is recurrent."""
        hybrid = self.arch in ("jamba", "qwen35")
        return [0 if hybrid and layer % 2 == 0 else self.n_head_kv for layer in range(self.n_layer)]


PLAIN = TinyModel()
"""Llama: chat template (ChatML), FIM tokens for one file, nothing said about pooling."""
