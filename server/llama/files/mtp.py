"""Whether a file has heads that guess (MTP, NextN) which the library can compute."""

from server.errors import ModelFailed
from server.llama.files.model_file import ModelFiles

ARCHITECTURES = frozenset(
    {"bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3"}
    | {"mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"}
)
"""Those with one head and a graph for it (llama.cpp src/models/*.cpp, LLM_GRAPH_TYPE_DECODER_MTP). For others the
library builds the whole model's graph over the head's cells, or aborts."""


def check_heads(name: str, files: ModelFiles) -> None:
    """Raises `ModelFailed` for a file without, before the library looks for them: it aborts where it finds none."""
    header = files.header
    kind = str(header.metadata.get("general.architecture", ""))
    n_heads = header.integer(f"{kind}.nextn_predict_layers")
    if not n_heads:
        raise ModelFailed(name, "spec_type has draft-mtp, but the model has no MTP heads; leave it out")
    if n_heads > 1 or kind not in ARCHITECTURES:
        raise ModelFailed(
            name, f"spec_type has draft-mtp, but {n_heads} MTP heads of a {kind} model are not supported; leave it out"
        )
    first = header.integer(f"{kind}.block_count") - n_heads
    if f"blk.{first}.nextn.eh_proj.weight" not in {tensor.name for _, part in files.parts for tensor in part.tensors}:
        raise ModelFailed(
            name, "spec_type has draft-mtp, but the file lacks the weights of its MTP heads; leave it out"
        )
