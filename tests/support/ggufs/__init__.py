"""Writes tiny GGUF files with random weights, so that tests run the native library on real files within seconds.

``gguf_file(folder, TinyModel(...))`` writes once per folder and options; `catalogue` names the models that show what
the demo model can't, and says what each is for. `lora_file` and `control_vector_file` write adapters for the plain
Llama, `truncated` and `damaged` spoil a file. The same options give the same bytes; every file is under 1 MB.
"""

from tests.support.ggufs.adapters import control_vector_file, lora_file
from tests.support.ggufs.catalogue import (
    BERT,
    BERT_RERANKER,
    EMBED_CLS,
    EMBED_LAST,
    EMBED_MEAN,
    EMBED_NONE,
    EXPERTS,
    HYBRID,
    MODELS,
    NO_FIM,
    NO_TEMPLATE,
    RECURRENT,
    REPO_FIM,
    SLIDING_WINDOW,
    TEMPLATE_RERANKER,
)
from tests.support.ggufs.damage import damaged, truncated
from tests.support.ggufs.model import CHATML, PLAIN, RERANK_PROMPT, TinyModel
from tests.support.ggufs.writing import gguf_file

__all__ = [
    "BERT",
    "BERT_RERANKER",
    "CHATML",
    "EMBED_CLS",
    "EMBED_LAST",
    "EMBED_MEAN",
    "EMBED_NONE",
    "EXPERTS",
    "HYBRID",
    "MODELS",
    "NO_FIM",
    "NO_TEMPLATE",
    "PLAIN",
    "RECURRENT",
    "REPO_FIM",
    "RERANK_PROMPT",
    "SLIDING_WINDOW",
    "TEMPLATE_RERANKER",
    "TinyModel",
    "control_vector_file",
    "damaged",
    "gguf_file",
    "lora_file",
    "truncated",
]
