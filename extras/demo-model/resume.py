"""Convert a published GGUF file to a checkpoint, to continue training: `python extras/demo-model/resume.py --help`.

The file has no optimizer state, so momenta start at zero, and the learning rate warms up again.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np
import torch
from network import Network, gguf_name, shape_of
from tokenizer import CONTROL, TAGS, train_tokenizer

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"


def _texts(reader: gguf.GGUFReader, key: str) -> list[str]:
    field = reader.fields[f"tokenizer.ggml.{key}"]
    return [bytes(field.parts[i]).decode() for i in field.data]


def write_tokenizer(reader: gguf.GGUFReader, out: Path) -> None:
    """Write the file's vocabulary and merges as tokenizer.json."""
    tokenizer = json.loads(train_tokenizer(["any text"]).to_str())
    tokens = _texts(reader, "tokens")
    assert tokens[: len(CONTROL + TAGS)] == [*CONTROL, *TAGS]
    tokenizer["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    tokenizer["model"]["merges"] = [merge.split(" ") for merge in _texts(reader, "merges")]
    out.write_text(json.dumps(tokenizer, ensure_ascii=False))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--name", default="demo", choices=("demo", "draft"))
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    args = parser.parse_args()
    args.build.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(args.model)
    write_tokenizer(reader, args.build / "tokenizer.json")
    stored = {tensor.name: np.array(tensor.data).astype(np.float32) for tensor in reader.tensors}
    shape = shape_of(args.name, len(_texts(reader, "tokens")))
    like = Network(shape).state_dict()
    weights = {name: torch.from_numpy(stored[gguf_name(name)]).reshape(w.shape) for name, w in like.items()}
    state = {"shape": asdict(shape), "weights": weights, "average": weights, "optimizers": None, "step": 0, "tokens": 0}
    torch.save(state, args.build / f"{args.name}.pt")


if __name__ == "__main__":
    main()
