"""What the embedding engine needs of the native side, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from server.engine.media import Spans
from server.vocab import Vocab

Vectors: TypeAlias = npt.NDArray[np.float32]
"""The result of one input, rows of ``n_embd``: one row, or with `Pooling.NONE` one for each token. Not normalized."""


class Pooling(StrEnum):
    """How the vectors of an input's tokens become one (llama.h, enum llama_pooling_type)."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"  # the first token's
    LAST = "last"
    RANK = "rank"  # the scores of a classification head


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """Fixed facts of one context. Counts are tokens unless they say otherwise.

    ``whole``: an input has to be computed at once, so it can't be longer than ``n_ubatch``; otherwise it may be
    spread over several computations, up to the context's length.
    """

    pooling: Pooling
    n_embd: int  # numbers in a vector; with `Pooling.RANK` the classes of the head
    n_seq: int  # inputs of one decode
    n_pack: int  # that one decode carries when it carries several inputs
    n_ubatch: int
    n_ctx_seq: int
    whole: bool

    @property
    def longest(self) -> int:
        """Tokens that an input may have."""
        return min(self.n_ubatch, self.n_ctx_seq) if self.whole else self.n_ctx_seq - 1


class EmbeddingRunner(Protocol):
    """One native context. `embed` is called by the instance's step thread only."""

    @property
    def info(self) -> EmbedderInfo: ...
    @property
    def vocab(self) -> Vocab: ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[Vectors]:
        """The vectors of each input, computed together. Nothing is remembered between two calls.

        At most ``n_seq`` inputs of ``n_pack`` tokens in all, or a single one. Raises `server.errors.InternalError`
        when the library reports a fault.
        """

    def embed_media(self, tokens: Sequence[int], media: Spans) -> Vectors:
        """As `embed`, of one input with media, which are encoded for it. Raises `InternalError`."""

    @property
    def takes_media(self) -> bool:
        """Whether it can: there is a projector, and what comes later changes nothing of what came before."""

    def close(self) -> None: ...
