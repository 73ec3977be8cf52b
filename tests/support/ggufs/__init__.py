"""Tiny GGUF files with random weights, for tests of the native library.

``gguf_file(folder, TinyModel(...))`` writes a file once per folder and options. The models below have features that
the demo model lacks; by default they have 64 dimensions, two layers and 400 tokens. `lora_file` and
`control_vector_file` write adapters for `PLAIN`; `truncated` and `damaged` write a broken copy of a file. The same
options give the same bytes. Every file is smaller than 1 MB.
"""

from pathlib import Path
from types import MappingProxyType

from tests.support.ggufs.adapters import control_vector_file, lora_file
from tests.support.ggufs.model import CHATML, PLAIN, RERANK_PROMPT, TinyModel
from tests.support.ggufs.writing import gguf_file

__all__ = ["CHATML", "PLAIN", "RERANK_PROMPT", "TinyModel", "control_vector_file", "gguf_file", "lora_file"]

REPO_FIM = TinyModel(fim="repo")
"""`PLAIN` with all FIM tokens: also padding, repository name and file separator."""
NO_FIM = TinyModel(fim="none")
"""`PLAIN` without FIM tokens: no infill."""
NO_TEMPLATE = TinyModel(chat_template=None)
"""`PLAIN` without a chat template."""
EXPERTS = TinyModel(n_expert=4)
"""Mixture of experts: Llama with four experts, two of which are used for each token."""
RECURRENT = TinyModel(arch="mamba")
"""Mamba: one recurrent state per sequence, which cannot be truncated."""
HYBRID = TinyModel(arch="jamba")
"""Jamba: a recurrent layer, then an attention layer. Its memory cannot be truncated either."""
MROPE = TinyModel(arch="qwen2vl")
"""Qwen2-VL: M-RoPE, where an image has fewer positions than cells."""
SLIDING_WINDOW = TinyModel(arch="gemma3", n_swa=32, swa_pattern=2)
"""Gemma 3: a layer that attends to the last 32 tokens, then one that attends to all. Its sliding-window cache is padded
to a multiple of 256 cells: it drops tokens only if ``swa_full`` is off and the context is larger."""
BERT = TinyModel(arch="bert", n_ctx=512, chat_template=None, fim="none", pooling="mean")
"""BERT embedding model: WordPiece (lower case, [CLS] and [SEP]), 512 positions, not causal, mean pooling, no KV cache,
no generation."""
BERT_RERANKER = TinyModel(arch="bert", n_ctx=512, chat_template=None, fim="none", pooling="rank")
"""BERT reranker: two-layer classification head with one score."""
TEMPLATE_RERANKER = TinyModel(arch="qwen3", pooling="rank", rerank_template=RERANK_PROMPT)
"""Qwen 3 reranker: causal, with its own rerank template. The score is the first of two labels' softmax."""
EMBED_MEAN = TinyModel(pooling="mean")
"""Llama embedding model: mean of all tokens."""
EMBED_CLS = TinyModel(pooling="cls", causal=False)
"""Llama embedding model: the first token's vector. Causal attention would make it the same for every text; without it
the whole prompt must fit one ubatch although the model has a KV cache."""
EMBED_LAST = TinyModel(pooling="last")
"""Llama embedding model: the last token's vector. A prompt may be split over batches."""
EMBED_NONE = TinyModel(pooling="none")
"""Llama embedding model: one vector for each token."""

MODELS = MappingProxyType(
    {
        "plain": PLAIN,
        "repo-fim": REPO_FIM,
        "no-fim": NO_FIM,
        "no-template": NO_TEMPLATE,
        "experts": EXPERTS,
        "recurrent": RECURRENT,
        "hybrid": HYBRID,
        "sliding-window": SLIDING_WINDOW,
        "bert": BERT,
        "bert-reranker": BERT_RERANKER,
        "template-reranker": TEMPLATE_RERANKER,
        "embed-mean": EMBED_MEAN,
        "embed-cls": EMBED_CLS,
        "embed-last": EMBED_LAST,
        "embed-none": EMBED_NONE,
    }
)


def truncated(path: Path, keep: float = 0.5) -> Path:
    """Write a copy of the first `keep` (0 to 1) of a file. Returns its path."""
    content = path.read_bytes()
    copy = path.with_name(f"truncated-{keep}-{path.name}")
    copy.write_bytes(content[: int(len(content) * keep)])
    return copy


def damaged(path: Path, at: int, replacement: bytes) -> Path:
    """Write a copy of a file with `replacement` at the offset `at`. Returns its path."""
    content = bytearray(path.read_bytes())
    content[at : at + len(replacement)] = replacement
    copy = path.with_name(f"damaged-{at}-{replacement.hex()[:16]}-{path.name}")
    copy.write_bytes(bytes(content))
    return copy
