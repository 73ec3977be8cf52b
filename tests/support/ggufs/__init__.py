"""Writes tiny GGUF files with random weights, so that tests run the native library on real files within seconds.

``gguf_file(folder, TinyModel(...))`` writes once per folder and options; the models below show what the demo model
can't. They have 64 dimensions, two layers and 400 tokens. `lora_file` and `control_vector_file` write adapters for the
plain Llama, `truncated` and `damaged` spoil a file. The same options give the same bytes; every file is under 1 MB.
"""

from pathlib import Path
from types import MappingProxyType

from tests.support.ggufs.adapters import control_vector_file, lora_file
from tests.support.ggufs.model import CHATML, PLAIN, RERANK_PROMPT, TinyModel
from tests.support.ggufs.writing import gguf_file

__all__ = ["CHATML", "PLAIN", "RERANK_PROMPT", "TinyModel", "control_vector_file", "gguf_file", "lora_file"]

REPO_FIM = TinyModel(fim="repo")
"""As `PLAIN`, with FIM tokens for a repository as well: pad, repository name and file separator."""
NO_FIM = TinyModel(fim="none")
"""As `PLAIN`, without FIM tokens: infill can't work."""
NO_TEMPLATE = TinyModel(chat_template=None)
"""As `PLAIN`, without a chat template."""
EXPERTS = TinyModel(n_expert=4)
"""Mixture of experts: Llama with four, two of them used for each token."""
RECURRENT = TinyModel(arch="mamba")
"""Mamba: one state for all that was read, which can't be cut in the middle."""
HYBRID = TinyModel(arch="jamba")
"""Jamba: a recurrent layer, then one with attention; can't be cut in the middle either."""
MROPE = TinyModel(arch="qwen2vl")
"""Qwen2-VL: M-RoPE, where a picture has fewer positions than cells."""
SLIDING_WINDOW = TinyModel(arch="gemma3", n_swa=32, swa_pattern=2)
"""Gemma 3: a layer that sees the last 32 tokens, then one that sees all. Its cache is padded to multiples of 256 cells,
so tokens are forgotten from there on only, and only where ``swa_full`` is off and the context is larger."""
BERT = TinyModel(arch="bert", n_ctx=512, chat_template=None, fim="none", pooling="mean")
"""BERT embedding model: WordPiece (lower case, [CLS] and [SEP]), 512 positions, not causal, mean pooling, no KV cache,
can't generate."""
BERT_RERANKER = TinyModel(arch="bert", n_ctx=512, chat_template=None, fim="none", pooling="rank")
"""BERT reranker: two-layer classification head with one score."""
TEMPLATE_RERANKER = TinyModel(arch="qwen3", pooling="rank", rerank_template=RERANK_PROMPT)
"""Qwen 3 reranker: causal, its own rerank template, score = softmax of two labels, the first of which counts."""
EMBED_MEAN = TinyModel(pooling="mean")
"""Llama that embeds: mean of all tokens."""
EMBED_CLS = TinyModel(pooling="cls", causal=False)
"""Llama that embeds: the first token's vector; not causal, or that vector would be the same for every text, and so the
whole prompt must be in one micro-batch although there is a KV cache. BERT with this pooling:
``TinyModel(arch="bert", n_ctx=512, chat_template=None, fim="none", pooling="cls")``."""
EMBED_LAST = TinyModel(pooling="last")
"""Llama that embeds: the last token's vector; its prompts may be split over batches."""
EMBED_NONE = TinyModel(pooling="none")
"""Llama that embeds: one vector for each token."""

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
    """A copy that ends in the middle."""
    content = path.read_bytes()
    cut = path.with_name(f"truncated-{keep}-{path.name}")
    cut.write_bytes(content[: int(len(content) * keep)])
    return cut


def damaged(path: Path, at: int, replacement: bytes) -> Path:
    """A copy with other bytes at `at`."""
    content = bytearray(path.read_bytes())
    content[at : at + len(replacement)] = replacement
    copy = path.with_name(f"damaged-{at}-{replacement.hex()[:16]}-{path.name}")
    copy.write_bytes(bytes(content))
    return copy
