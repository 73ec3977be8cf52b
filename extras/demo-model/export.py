"""Write a checkpoint as GGUF: `python extras/demo-model/export.py --help`."""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from network import Shape, gguf_name
from tokenizer import CONTROL, PRE, TAGS
from torch import Tensor

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add the hyperparameters."""
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.dim_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(shape.dim_head)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.n_vocab)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path, frame: bool = False) -> None:
    """Add vocabulary, merges, token types and special tokens. With `frame`, texts get BOS and EOS."""
    model = json.loads(path.read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = dict.fromkeys(CONTROL, gguf.TokenType.CONTROL)
    types |= dict.fromkeys(TAGS, gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    ids = model["vocab"]
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    for short, token in (("pre", "prefix"), ("suf", "suffix"), ("mid", "middle"), ("pad", "pad")):
        writer.add_uint32(f"tokenizer.ggml.fim_{short}_token_id", ids[f"<|fim_{token}|>"])
    writer.add_add_bos_token(frame)
    writer.add_add_eos_token(frame)


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: Tensor, kind: str) -> None:
    """Add a matrix as `kind` (f32, f16 or q8_0), other tensors as float32."""
    quantization = gguf.GGMLQuantizationType[kind.upper()]
    values = weight.float().numpy()
    if values.ndim == 2 and kind != "f32":
        writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    else:
        writer.add_tensor(name, values.astype(np.float32))


def add_weights(writer: gguf.GGUFWriter, weights: dict[str, Tensor], kind: str) -> None:
    """Add the network's tensors with their GGUF names."""
    for name, weight in weights.items():
        add_tensor(writer, gguf_name(name), weight, kind)


def add_card(writer: gguf.GGUFWriter, name: str, kind: str) -> None:
    """Add name, author, licence and description."""
    writer.add_name(name)
    writer.add_author("The Llamapool authors")
    writer.add_license("mit")
    writer.add_description("A very small model, trained on text that its own scripts generate")
    writer.add_languages(["en"])
    writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[kind])


def write(writer: gguf.GGUFWriter, draft: Path, out: Path) -> None:
    """Write to `draft`, then rename it to `out`, so that writing is atomic."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(out)


def export(
    checkpoint: Path, tokenizer: Path, out: Path, name: str, kind: str, raw: bool = False, mean_pooling: bool = False
) -> None:
    """Write `out` atomically. With mean_pooling it is an embedding model without a chat template."""
    state = torch.load(checkpoint, map_location="cpu")
    draft = out.with_suffix(".tmp")
    writer = gguf.GGUFWriter(draft, "llama")
    add_card(writer, name, kind)
    add_shape(writer, Shape(**state["shape"]))
    add_tokenizer(writer, tokenizer)
    if mean_pooling:
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    else:
        writer.add_chat_template((HERE / "chat_template.jinja").read_text().rstrip("\n"))
    add_weights(writer, state["weights" if raw else "average"], kind)
    write(writer, draft, out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--out", type=Path, default=MODELS / "demo.gguf")
    parser.add_argument("--name", default="Llamapool demo")
    parser.add_argument("--kind", choices=("f32", "f16", "q8_0"), default="f16")
    parser.add_argument("--raw", action="store_true", help="use the last step's weights instead of their average")
    args = parser.parse_args()
    checkpoint = args.build / f"{args.checkpoint}.pt"
    export(checkpoint, args.build / "tokenizer.json", args.out, args.name, args.kind, args.raw)


if __name__ == "__main__":
    main()
