"""LoRA adapters, activated LoRA adapters and control vectors for a `TinyModel` of the llama architecture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFType, GGUFValueType, GGUFWriter

from tests.support.ggufs.model import PLAIN
from tests.support.ggufs.writing import finish

RANK = 4
TARGETS = ("attn_output", "ffn_down")


def lora_file(
    folder: Path,
    name: str = "lora",
    *,
    seed: int = 11,
    task_name: str = "",
    prompt_prefix: str = "",
    invocation_tokens: Sequence[int] = (),
) -> Path:
    """Write ``NAME.gguf``, a LoRA of rank 4 that changes the replies of `PLAIN`. Returns its path.

    Each `seed` gives other replies. With `invocation_tokens` it is an aLoRA, which applies from their last occurrence
    in the prompt.
    """
    path = folder / f"{name}.gguf"
    writer = GGUFWriter(path, PLAIN.arch)
    writer.add_type(GGUFType.ADAPTER)
    writer.add_name(name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    if task_name:
        writer.add_string("adapter.lora.task_name", task_name)
    if prompt_prefix:
        writer.add_string("adapter.lora.prompt_prefix", prompt_prefix)
    if invocation_tokens:
        key, array, element = "adapter.alora.invocation_tokens", GGUFValueType.ARRAY, GGUFValueType.UINT32
        writer.add_key_value(key, list(invocation_tokens), array, element)
    rng = np.random.default_rng(seed)
    for layer in range(PLAIN.n_layer):
        for target in TARGETS:
            n_in = PLAIN.n_ff if target == "ffn_down" else PLAIN.n_embd
            tensor = f"blk.{layer}.{target}.weight"
            down = rng.standard_normal((RANK, n_in), np.float32) / np.float32(np.sqrt(n_in))
            up = rng.standard_normal((PLAIN.n_embd, RANK), np.float32)
            writer.add_tensor(f"{tensor}.lora_a", down)
            writer.add_tensor(f"{tensor}.lora_b", up)
    finish(writer)
    return path


def control_vector_file(folder: Path, name: str = "control", *, seed: int = 21) -> Path:
    """Write ``NAME.gguf`` with a direction for each layer except layer 0 (as the format demands). Returns its path."""
    path = folder / f"{name}.gguf"
    writer = GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", PLAIN.arch)
    writer.add_uint32("controlvector.layer_count", PLAIN.n_layer - 1)
    rng = np.random.default_rng(seed)
    for layer in range(1, PLAIN.n_layer):
        writer.add_tensor(f"direction.{layer}", rng.standard_normal(PLAIN.n_embd, np.float32) * np.float32(2))
    finish(writer)
    return path
