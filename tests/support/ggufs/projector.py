"""Projectors with random weights for a `TinyModel`. Encoding an image takes a few milliseconds."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGUFWriter

from tests.support.ggufs.writing import finish

Shapes = dict[str, tuple[int, ...]]
N_MEL = 80


@dataclass(frozen=True, slots=True)
class TinyProjector:
    """Options of one file. Attention heads have 16 dimensions.

    ``mlp`` (LLaVA): images of one size, decoded with causal attention. ``gemma3``: images of one size, decoded without
    causal attention. ``qwen2vl``: images of any size, with M-RoPE. ``internvl``: slices of one size, which the library
    encodes in batches. ``qwen2a``: audio, 750 embeddings for 30 s. ``qwen3a``: audio, 13 embeddings for 1 s.
    ``n_embd_text``: dimensions of the model. ``positions``: type of the position embeddings.
    """

    kind: Literal["mlp", "gemma3", "qwen2vl", "internvl", "qwen2a", "qwen3a"] = "mlp"
    n_embd_text: int = 64
    n_embd: int = 64
    n_layer: int = 2
    image_size: int = 64
    patch_size: int = 8
    n_merge: int = 2  # gemma3 and internvl: n_merge x n_merge patches become one embedding
    positions: Literal["F32", "F16"] = "F32"
    seed: int = 31

    @property
    def is_audio(self) -> bool:
        return self.kind in ("qwen2a", "qwen3a")

    @property
    def n_tokens(self) -> int:
        """Embeddings of an image, for the kinds with images of one size."""
        n = self.image_size // self.patch_size // (self.n_merge if self.kind == "gemma3" else 1)
        return n * n


def projector_file(folder: Path, projector: TinyProjector) -> Path:
    """Return the path of the file, which is written on the first call."""
    source = Path(__file__).read_bytes()
    digest = hashlib.sha256(repr(projector).encode() + source).hexdigest()[:12]
    path = folder / f"mmproj-{projector.kind}-{digest}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _write(part, projector)
        part.rename(path)
    return path


def _write(path: Path, projector: TinyProjector) -> None:
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(f"tiny {projector.kind}")
    encoder = "audio" if projector.is_audio else "vision"
    writer.add_bool(f"clip.has_{encoder}_encoder", True)
    writer.add_string("clip.projector_type", {"qwen2vl": "qwen2vl_merger"}.get(projector.kind, projector.kind))
    writer.add_bool("clip.use_gelu", True)
    sizes = {"image_size": projector.image_size, "patch_size": projector.patch_size}
    numbers = {
        **({"num_mel_bins": N_MEL} if projector.is_audio else sizes),
        "embedding_length": projector.n_embd,
        "feed_forward_length": 2 * projector.n_embd,
        "block_count": projector.n_layer,
        "projection_dim": projector.n_embd_text,
        "attention.head_count": projector.n_embd // 16,
    }
    if projector.kind in ("gemma3", "internvl"):
        numbers["projector.scale_factor"] = projector.n_merge
    for name, number in numbers.items():
        writer.add_uint32(f"clip.{encoder}.{name}", number)
    writer.add_float32(f"clip.{encoder}.attention.layer_norm_epsilon", 1e-6)
    for name in () if projector.is_audio else ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    rng = np.random.default_rng(projector.seed)
    for name, shape in _shapes(projector).items():
        array = _weights(rng, name, shape)
        half = "position_embd" in name and projector.positions == "F16"
        writer.add_tensor(name, array.astype(np.float16) if half else array)
    finish(writer)


def _weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> "np.typing.NDArray[np.float32]":
    if len(shape) == 1 or name.endswith(".bias"):
        norm = name.endswith(("mlp.0.weight", "ln1.weight", "ln2.weight", "ln.weight", "norm.weight"))
        return np.ones(shape, np.float32) if norm else np.zeros(shape, np.float32)
    n_in = shape[0] if name == "mm.input_projection.weight" else int(np.prod(shape[1:]))
    return rng.standard_normal(shape, np.float32) * np.float32(1.5 / np.sqrt(n_in))


def _shapes(projector: TinyProjector) -> Shapes:
    """Return the shapes in numpy's order, which is GGUF's reversed."""
    n, n_text, patch = projector.n_embd, projector.n_embd_text, projector.patch_size
    if projector.kind == "qwen2a":
        return _whisper(projector)
    if projector.kind == "qwen3a":
        return _qwen3_asr(projector)
    shapes: Shapes = {"v.patch_embd.weight": (n, 3, patch, patch)}
    if projector.kind == "qwen2vl":
        shapes |= {"v.patch_embd.weight.1": (n, 3, patch, patch)}
        shapes |= _affine("v.post_ln", n) | _linear("mm.0", 4 * n, 4 * n) | _linear("mm.2", 4 * n, n_text)
    else:
        n_positions = (projector.image_size // patch) ** 2 + (projector.kind == "internvl")
        shapes |= {"v.patch_embd.bias": (n,), "v.position_embd.weight": (n_positions, n)}
        shapes |= _affine("v.post_ln", n)
    if projector.kind == "gemma3":
        shapes |= {"mm.soft_emb_norm.weight": (n,), "mm.input_projection.weight": (n, n_text)}
    elif projector.kind == "internvl":
        n_merged, mlp = projector.n_merge**2 * n, "mm.model.mlp"
        shapes |= {"v.class_embd": (n,)} | _affine(f"{mlp}.0", n_merged)
        shapes |= _linear(f"{mlp}.1", n_merged, n_text) | _linear(f"{mlp}.3", n_text, n_text)
    elif projector.kind == "mlp":
        shapes |= _linear("mm.0", n, n_text) | _linear("mm.2", n_text, n_text)
    return shapes | _layers(projector, "v")


def _whisper(projector: TinyProjector) -> Shapes:
    """Whisper's encoder: the biases of the convolutions have two dimensions, keys have no bias."""
    n = projector.n_embd
    shapes: Shapes = {
        **{"a.conv1d.1.weight": (n, N_MEL, 3), "a.conv1d.1.bias": (n, 1)},
        **{"a.conv1d.2.weight": (n, n, 3), "a.conv1d.2.bias": (n, 1)},
        "a.position_embd.weight": (1500, n),
    }
    shapes |= _affine("a.post_ln", n) | _linear("mm.a.fc", n, projector.n_embd_text) | _layers(projector, "a")
    return {name: shape for name, shape in shapes.items() if not name.endswith("attn_k.bias")}


def _qwen3_asr(projector: TinyProjector) -> Shapes:
    """Qwen3-ASR's encoder: three convolutions; each second has the same 13 positions."""
    n, n_channels = projector.n_embd, 8
    shapes = Shapes()
    for number, n_in in ((1, 1), (2, n_channels), (3, n_channels)):
        shapes[f"a.conv2d.{number}.weight"] = (n_channels, n_in, 3, 3)
        shapes[f"a.conv2d.{number}.bias"] = (1, n_channels, 1, 1)
    shapes |= {"a.conv_out.weight": (n, n_channels * N_MEL // 8), "a.position_embd.weight": (13, n)}
    shapes |= _affine("a.post_ln", n) | _linear("mm.a.mlp.1", n, n) | _linear("mm.a.mlp.2", n, projector.n_embd_text)
    return shapes | _layers(projector, "a")


def _layers(projector: TinyProjector, encoder: str) -> Shapes:
    n, shapes = projector.n_embd, Shapes()
    for layer in range(projector.n_layer):
        name = f"{encoder}.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes |= _linear(f"{name}.{part}", n, n)
        shapes |= _affine(f"{name}.ln1", n) | _affine(f"{name}.ln2", n)
        shapes |= _linear(f"{name}.ffn_up", n, 2 * n) | _linear(f"{name}.ffn_down", 2 * n, n)
    return shapes


def _linear(name: str, n_in: int, n_out: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}


def _affine(name: str, n: int) -> Shapes:
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}
