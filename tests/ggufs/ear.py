"""A projector that hears (Qwen3-ASR's form), with random weights, for a `TinyModel`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter


@dataclass(frozen=True, slots=True)
class TinyEar:
    """Options of one file. ``n_embd_text``: the model's."""

    n_embd_text: int = 64
    n_embd: int = 64
    n_head: int = 2
    n_layer: int = 1
    n_mels: int = 64
    channels: int = 8
    seed: int = 37


def ear_file(folder: Path, ear: TinyEar) -> Path:
    """The path of the file, written if it is not there."""
    digest = hashlib.sha256(repr(ear).encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    path = folder / f"mmproj-ear-{digest}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _write(part, ear)
        part.rename(path)
    return path


def _write(path: Path, ear: TinyEar) -> None:
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name("tiny ear")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "qwen3a")
    for name, number in {
        "embedding_length": ear.n_embd,
        "feed_forward_length": 2 * ear.n_embd,
        "block_count": ear.n_layer,
        "projection_dim": ear.n_embd_text,
        "attention.head_count": ear.n_head,
        "num_mel_bins": ear.n_mels,
    }.items():
        writer.add_uint32(f"clip.audio.{name}", number)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    rng = np.random.default_rng(ear.seed)
    for name, shape in _shapes(ear).items():
        if name.endswith(".bias") or ".ln" in name or "post_ln" in name:
            ones = name.endswith(".weight")
            writer.add_tensor(name, np.ones(shape, np.float32) if ones else np.zeros(shape, np.float32))
        else:
            n_in = int(np.prod(shape[1:]))
            added = "position_embd" in name  # which the library can do to 32 bits alone, where it multiplies by 16
            values = rng.standard_normal(shape) * 1.5 / np.sqrt(n_in)
            writer.add_tensor(name, values.astype(np.float32 if added else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(ear: TinyEar) -> dict[str, tuple[int, ...]]:
    """numpy's order: GGUF's, reversed."""
    n, n_channels = ear.n_embd, ear.channels
    shapes: dict[str, tuple[int, ...]] = {}
    for number in (1, 2, 3):
        shapes[f"a.conv2d.{number}.weight"] = (n_channels, 1 if number == 1 else n_channels, 3, 3)
        shapes[f"a.conv2d.{number}.bias"] = (1, n_channels, 1, 1)
    shapes |= {"a.conv_out.weight": (n, n_channels * ear.n_mels // 8), "a.position_embd.weight": (13, n)}
    shapes |= _affine("a.post_ln", n) | _linear("mm.a.mlp.1", n, n) | _linear("mm.a.mlp.2", n, ear.n_embd_text)
    for layer in range(ear.n_layer):
        name = f"a.blk.{layer}"
        shapes |= _linear(f"{name}.attn_qkv", n, 3 * n) | _linear(f"{name}.attn_out", n, n)
        shapes |= _affine(f"{name}.ln1", n) | _affine(f"{name}.ln2", n)
        shapes |= _linear(f"{name}.ffn_up", n, 2 * n) | _linear(f"{name}.ffn_down", 2 * n, n)
    return shapes


def _linear(name: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}


def _affine(name: str, n: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}
