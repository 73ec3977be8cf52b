"""The models' part of the option table that is about embedding and reranking."""

from typing import ClassVar, Literal

from pydantic import model_validator

from server.options.table.option import SettingsModel, option
from server.options.table.values import AutoBool, Bool, Int

MAX_NORM = 1000


class EmbeddingSettings(SettingsModel):
    """Whether a model turns texts into vectors or scores, and how."""

    group: ClassVar[str] = "Embedding and reranking"

    embedding: AutoBool = option(None, "--embedding --embeddings", env="LLAMA_ARG_EMBEDDINGS")
    """Serve embeddings; auto = where the file is an encoder or names a pooling, which then does not generate."""
    pooling: Literal["", "none", "mean", "cls", "last", "rank"] = option("", "--pooling", env=True, metavar="TYPE")
    """How a text's vector is made of its tokens' (none: one vector for each token); empty = as the model says."""
    reranking: Bool = option(False, "--rerank --reranking", env="LLAMA_ARG_RERANKING")
    """Serve reranking: embedding with pooling rank."""
    embd_normalize: Int = option(2, "--embd-normalize", ge=-1, le=MAX_NORM)
    """Norm of pooled vectors: -1 = none, 0 = largest component 32760, 1 = taxicab, 2 = euclidean, more = p-norm."""

    @model_validator(mode="after")
    def _consistent(self) -> "EmbeddingSettings":
        if self.reranking and self.pooling not in ("", "rank"):
            raise ValueError(f"reranking needs pooling rank, and pooling is {self.pooling}; remove one")
        if self.embedding is False and (self.reranking or self.pooling):
            raise ValueError("embedding is false, but reranking or pooling is set; remove one")
        return self
