"""Make a model as slow as a larger one without changing its output: ``python -m benchmarks.inflate_gguf IN OUT``.

Its feed-forward layers get more neurons with zero weights, which are read and multiplied but add nothing. A small
trained model then represents one of a size for which speculative decoding pays.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

from tests.support.ggufs.writing import finish

_WIDENED = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_WRITER_KEYS = ("GGUF.", "general.architecture")  # keys that the writer writes itself


def inflate(source: Path, target: Path, n_ff: int) -> None:
    """Write `source` with feed-forward layers of `n_ff` neurons to `target`."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    width = f"{architecture}.feed_forward_length"
    for field in reader.fields.values():
        if field.name.startswith(_WRITER_KEYS):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = n_ff if field.name == width else field.contents()
        writer.add_key_value(field.name, value, kind, sub_type=element)
    for tensor in reader.tensors:
        values = np.asarray(tensor.data)
        if tensor.name.endswith(_WIDENED):
            axis = 1 if tensor.name.endswith(_WIDENED[2]) else 0
            missing = n_ff - values.shape[axis]
            values = np.pad(values, [(0, missing) if i == axis else (0, 0) for i in (0, 1)])
        writer.add_tensor(tensor.name, values, raw_dtype=tensor.tensor_type)
    finish(writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--n-ff", type=int, default=16384, help="neurons of each feed-forward layer")
    options = parser.parse_args()
    inflate(options.source, options.target, options.n_ff)
    print(f"{options.target}: {options.target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
