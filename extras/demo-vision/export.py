"""Write the encoders and projectors as one GGUF file for libmtmd: `python extras/demo-vision/export.py --help`."""

import argparse
from pathlib import Path

import audio_encoder
import gguf
import numpy as np
import torch
from encoder import MEAN, STD, BlockShape, Encoder, Shape
from torch import Tensor

HERE = Path(__file__).parent
_BLOCKS = {
    "norm_1": "ln1",
    "qkv": "attn_qkv",
    "out": "attn_out",
    "norm_2": "ln2",
    "up": "ffn_up",
    "down": "ffn_down",
}
_SEEN = {"patches": "v.patch_embd", "norm": "v.post_ln", "mlp_in": "mm.0", "mlp_out": "mm.1"}
_HEARD = {
    "convs.0": "a.conv2d.1",
    "convs.1": "a.conv2d.2",
    "convs.2": "a.conv2d.3",
    "conv_out": "a.conv_out",
    "norm": "a.post_ln",
    "mlp_in": "mm.a.mlp.1",
    "mlp_out": "mm.a.mlp.2",
}


def gguf_name(name: str, prefix: str) -> str:
    """Return the tensor's name in GGUF. prefix: v for the image encoder, a for the audio encoder."""
    if name == "positions":
        return f"{prefix}.position_embd.weight"
    stem, _, end = name.rpartition(".")
    if name.startswith("blocks."):
        _, i, rest = stem.split(".", 2)
        return f"{prefix}.blk.{i}.{_BLOCKS[rest]}.{end}"
    return f"{(_SEEN if prefix == 'v' else _HEARD)[stem]}.{end}"


def add_sizes(writer: gguf.GGUFWriter, kind: str, shape: BlockShape) -> None:
    """Add the hyperparameters that libmtmd reads for both encoders (clip.cpp)."""
    writer.add_bool(f"clip.has_{kind}_encoder", True)
    for key, value in {
        "embedding_length": shape.dim,
        "feed_forward_length": shape.dim_ff,
        "block_count": shape.n_layer,
        "projection_dim": shape.dim_out,
        "attention.head_count": shape.n_head,
    }.items():
        writer.add_uint32(f"clip.{kind}.{key}", value)
    writer.add_float32(f"clip.{kind}.attention.layer_norm_epsilon", shape.norm_eps)


def add_tensors(writer: gguf.GGUFWriter, weights: dict[str, Tensor], prefix: str, kind: str, patch: int = 0) -> None:
    """Add feed-forward matrices as `kind` (f16 or q8_0), other matrices as float16, other tensors as float32."""
    quantization = gguf.GGMLQuantizationType[kind.upper()]
    for name, weight in weights.items():
        values = weight.float().numpy()
        if name == "patches.weight":
            values = values.reshape(len(values), 3, patch, patch)
        if name.startswith("convs.") and name.endswith(".bias"):
            values = values.reshape(1, -1, 1, 1) if values.ndim == 1 else values
        is_matrix = values.ndim > 1 and name.endswith(".weight")
        if is_matrix and (".up." in name or ".down." in name):
            packed = gguf.quants.quantize(values, quantization)
            writer.add_tensor(gguf_name(name, prefix), packed, raw_dtype=quantization)
        else:
            writer.add_tensor(gguf_name(name, prefix), values.astype(np.float16 if is_matrix else np.float32))


def export(seen: Path, heard: Path, out: Path, kind: str) -> None:
    """Write `out` whole or not at all."""
    draft = out.with_suffix(".tmp")
    writer = gguf.GGUFWriter(draft, "clip")
    writer.add_type("mmproj")
    writer.add_name("Llamapool demo eyes and ears")
    writer.add_author("The Llamapool authors")
    writer.add_license("mit")
    writer.add_description("Very small encoders for the demo model, trained on pictures and sounds that scripts make")
    writer.add_file_type({"f16": 1, "q8_0": 7}[kind])
    state = torch.load(seen, map_location="cpu")
    shape = Shape(**state["shape"])
    add_sizes(writer, "vision", shape)
    writer.add_string("clip.vision.projector_type", "janus_pro")
    writer.add_uint32("clip.vision.image_size", shape.image)
    writer.add_uint32("clip.vision.patch_size", shape.patch)
    writer.add_array("clip.vision.image_mean", [MEAN] * 3)
    writer.add_array("clip.vision.image_std", [STD] * 3)
    writer.add_bool("clip.use_silu", True)  # for the image encoder; that of the audio encoder is fixed
    encoder = Encoder(shape)
    encoder.load_state_dict(state["encoder"])
    add_tensors(writer, encoder.state_dict(), "v", kind, shape.patch)
    if heard.exists():
        state = torch.load(heard, map_location="cpu")
        audio = audio_encoder.AudioEncoder(audio_encoder.Shape(**state["shape"]))
        audio.load_state_dict(state["encoder"])
        add_sizes(writer, "audio", audio.shape)
        writer.add_string("clip.audio.projector_type", "qwen3a")
        writer.add_uint32("clip.audio.num_mel_bins", audio.shape.n_mels)
        add_tensors(writer, audio.state_dict(), "a", "f16")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "models" / "mmproj-demo.gguf")
    parser.add_argument(
        "--kind", choices=("f16", "q8_0"), default="q8_0", help="of the matrices of the vision encoder's feed-forwards"
    )
    args = parser.parse_args()
    export(args.build / "tuned.pt", args.build / "tuned-heard.pt", args.out, args.kind)


if __name__ == "__main__":
    main()
