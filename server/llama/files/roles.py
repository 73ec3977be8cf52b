"""The roles of a model (generation, embedding, or both), and a check of its MTP (NextN) heads."""

from server.engine.runner_api import Pooling
from server.errors import ModelFailed
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import ModelFiles
from server.pool.spec import LoadParams

ENCODERS = frozenset(
    {
        *("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
        *("modern-bert", "gemma-embedding", "t5encoder"),
    }
)
"""Architectures without a KV cache, which cannot generate (llama.cpp src/llama-model.cpp, create_memory)."""

POOLINGS = (Pooling.NONE, Pooling.MEAN, Pooling.CLS, Pooling.LAST, Pooling.RANK)  # enum llama_pooling_type


def embeds(header: GgufHeader, native: LoadParams) -> bool:
    """Return whether the model embeds. An encoder always does. Others do if ``embedding`` is True, or if it is not set
    and the file or ``pooling`` has a pooling type.
    """
    wanted = native.embedding
    if wanted is None:
        wanted = _made_for_embedding(header) or native.pooling != ""
    return wanted or is_encoder(header)


def generates(header: GgufHeader, native: LoadParams) -> bool:
    """Return whether the model generates. A model that embeds also generates, as with llama-server's ``--embeddings``,
    unless its file was made for embedding or pooling is ``rank``.
    """
    only_embeds = _made_for_embedding(header) or native.pooling == "rank"
    return not (only_embeds and embeds(header, native))


def _made_for_embedding(header: GgufHeader) -> bool:
    return is_encoder(header) or file_pooling(header) not in (None, Pooling.NONE)


def is_encoder(header: GgufHeader) -> bool:
    """Return whether the architecture is in `ENCODERS`."""
    return header.architecture in ENCODERS


def file_pooling(header: GgufHeader) -> Pooling | None:
    """Return the pooling type in the file, if any."""
    number = header.of_model("pooling_type", -1)
    return POOLINGS[number] if 0 <= number < len(POOLINGS) else None


def pooling_of(header: GgufHeader, native: LoadParams) -> Pooling:
    """Return the pooling type of the setting, otherwise of the file, otherwise NONE (src/llama-context.cpp)."""
    return Pooling(native.pooling) if native.pooling else file_pooling(header) or Pooling.NONE


MTP_ARCHITECTURES = frozenset(
    {"bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3"}
    | {"mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"}
)
"""Architectures with one head and a graph for it (llama.cpp src/models/*.cpp, LLM_GRAPH_TYPE_DECODER_MTP). For others
the library builds the graph of the whole model over the head's cells, or aborts."""


def check_heads(name: str, files: ModelFiles) -> None:
    """Raise `ModelFailed` for a file without usable MTP heads, on which the library would abort."""
    header = files.header
    kind, n_heads = header.architecture, header.of_model("nextn_predict_layers")
    if not n_heads:
        raise ModelFailed(name, "spec_type has draft-mtp, but the model has no MTP heads; leave it out")
    if n_heads > 1 or kind not in MTP_ARCHITECTURES:
        raise ModelFailed(
            name, f"spec_type has draft-mtp, but {n_heads} MTP heads of a {kind} model are not supported; leave it out"
        )
    first = header.of_model("block_count") - n_heads
    if f"blk.{first}.nextn.eh_proj.weight" not in {tensor.name for tensor in files.tensors}:
        raise ModelFailed(
            name, "spec_type has draft-mtp, but the file lacks the weights of its MTP heads; leave it out"
        )
