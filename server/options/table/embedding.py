"""The models' part of the option table that is about embedding and reranking."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from server.options.table.option import SettingsModel, option
from server.options.table.values import AutoBool, Bool, Int

MAX_NORM = 1000


class EmbeddingSettings(SettingsModel):
    """Whether a model turns texts into vectors or scores, and how."""

    group: ClassVar[str] = "Embedding and reranking"

    embedding: Annotated[AutoBool, option("--embedding", "--embeddings", env="LLAMA_ARG_EMBEDDINGS")] = None
    """Serve embeddings; auto = where the file is an encoder or names a pooling, which then does not generate."""
    pooling: Annotated[
        Literal["", "none", "mean", "cls", "last", "rank"],
        option("--pooling", env="LLAMA_ARG_POOLING", metavar="TYPE"),
    ] = ""
    """How a text's vector is made of its tokens' (none: one vector for each token); empty = as the model says."""
    reranking: Annotated[Bool, option("--rerank", "--reranking", env="LLAMA_ARG_RERANKING")] = False
    """Serve reranking: embedding with pooling rank."""
    embd_normalize: Annotated[Int, option("--embd-normalize"), Field(ge=-1, le=MAX_NORM)] = 2
    """Norm of pooled vectors: -1 = none, 0 = largest component 32760, 1 = taxicab, 2 = euclidean, more = p-norm."""

    @model_validator(mode="after")
    def _consistent(self) -> "EmbeddingSettings":
        if self.reranking and self.pooling not in ("", "rank"):
            raise ValueError(f"reranking needs pooling rank, and pooling is {self.pooling}; remove one")
        if self.embedding is False and (self.reranking or self.pooling):
            raise ValueError("embedding is false, but reranking or pooling is set; remove one")
        return self
