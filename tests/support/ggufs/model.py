"""`TinyModel`: the options of a generated GGUF file."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RERANK_PROMPT = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>\nRelevant:"
"""A rerank template. It is no Jinja: llama-server replaces the two names in braces (server-common.cpp)."""

Array = npt.NDArray[np.float32]
Generators = Literal["llama", "qwen3", "qwen2vl", "gemma3", "mamba", "jamba", "glm4moe", "qwen35", "dream"]
Arch = Generators | Literal["bert", "t5", "t5encoder", "unknown"]
Pooling = Literal["none", "mean", "cls", "last", "rank"]
Fim = Literal["none", "file", "repo"]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Options of one file. ``n_vocab`` counts bytes, merges and specials; unused tokens fill the rest."""

    arch: Arch = "llama"
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int = 400
    n_ctx: int = 2048
    n_swa: int = 32  # gemma3 only
    swa_pattern: int = 6  # gemma3 only: the last of so many layers attends to all tokens
    n_expert: int = 0  # llama only; two are used for each token
    n_nextn: int = 0  # glm4moe and qwen35 only: MTP heads, which draft from the last token alone
    depth: float = 1.0  # scale of what layers add to a token's embedding; smaller raises the acceptance rate of drafts
    tokenizer: Literal["bpe", "spm"] = "bpe"  # not for bert; "spm": SentencePiece with byte fallback
    seed: int = 1
    ftype: Literal["F32", "F16"] = "F32"
    chat_template: str | None = CHATML
    tool_use_template: str | None = None
    rerank_template: str | None = None
    fim: Fim = "file"  # "file": prefix, suffix and middle; "repo": also padding, repository name, file separator
    pooling: Pooling | None = None  # None: not in the file
    causal: bool = True  # ignored for bert, which is not causal
    nan_weights: bool = False

    @property
    def n_ff(self) -> int:
        return 2 * self.n_embd

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def heads_kv(self) -> list[int]:
        """KV heads of each layer; 0 for a recurrent layer of a hybrid model."""
        hybrid = self.arch in ("jamba", "qwen35")
        return [0 if hybrid and layer % 2 == 0 else self.n_head_kv for layer in range(self.n_layer)]


PLAIN = TinyModel()
"""Llama with a ChatML template and FIM tokens for one file, without a pooling type."""
