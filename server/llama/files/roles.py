"""What a model is for: generating text, embedding it, or both."""

from dataclasses import dataclass

from server.engine.embedding.vectors import Pooling
from server.llama.files.gguf_header import GgufHeader
from server.pool.spec import LoadParams

ENCODERS = frozenset(
    {
        *("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
        *("modern-bert", "gemma-embedding", "t5encoder"),
    }
)
"""Architectures that have no KV cache and can't generate (llama.cpp src/llama-model.cpp, create_memory)."""

# enum llama_pooling_type
POOLING_TYPES = {Pooling.NONE: 0, Pooling.MEAN: 1, Pooling.CLS: 2, Pooling.LAST: 3, Pooling.RANK: 4}
_BY_TYPE = {number: pooling for pooling, number in POOLING_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Roles:
    """What the settings and the file make of a model."""

    generates: bool
    embeds: bool


def roles(header: GgufHeader, native: LoadParams) -> Roles:
    """An encoder, or a file that names a pooling, was made for embedding and does only that.

    Any other file embeds where ``embedding`` or ``pooling`` says so, beside generating, as under llama-server's
    ``--embeddings``; with pooling ``rank`` it has a classification head and generates nothing of use.
    ``embedding: false`` makes a decoder that names a pooling generate; an encoder embeds all the same.
    """
    made_for_it = is_encoder(header) or file_pooling(header) not in (None, Pooling.NONE)
    wanted = (made_for_it or native.pooling != "") if native.embedding is None else native.embedding
    embeds = wanted or is_encoder(header)
    return Roles(generates=not embeds or not (made_for_it or native.pooling == "rank"), embeds=embeds)


def is_encoder(header: GgufHeader) -> bool:
    """Whether the architecture can't generate."""
    return header.metadata.get("general.architecture") in ENCODERS


def file_pooling(header: GgufHeader) -> Pooling | None:
    """The pooling that the file names."""
    return _BY_TYPE.get(header.integer(f"{header.metadata.get('general.architecture')}.pooling_type", -1))


def pooling_of(header: GgufHeader, native: LoadParams) -> Pooling:
    """The setting's, else the file's, else none (llama.cpp src/llama-context.cpp)."""
    return Pooling(native.pooling) if native.pooling else file_pooling(header) or Pooling.NONE
