"""Write a GGUF file with random weights, large enough for meaningful speed measurements.

``python -m benchmarks.make_gguf bench-135m.gguf [--size 135m|135m-150k|360m|500m|8b] [--seed 1]``

The network has the dimensions of a well-known small model (llama architecture, grouped-query attention, SwiGLU). Its
matrices are Q8_0. Its vocabulary is a byte-level BPE of realistic size made from syllables, so that tokenizing,
sampling and detokenizing have realistic costs. Its output is meaningless.

Weights are scaled so that activations stay near one in all layers. The output rows of control tokens and unprintable
bytes are zero: greedy decoding never ends by itself, and each token prints at least one whole character.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from server.bench.scenarios import SYLLABLES
from tests.support.ggufs.vocabulary import byte_letters
from tests.support.ggufs.writing import finish

HEAD_DIM = 64
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
SPACE = "\u0120"  # how byte-level BPE spells a space


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Dimensions of a network; ``n_head`` times `HEAD_DIM` is ``n_embd``."""

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int


SHAPES = {
    "135m": Dimensions(n_layer=33, n_embd=576, n_head=9, n_head_kv=3, n_ff=1536, n_vocab=32768),  # SmolLM2-135M, deeper
    "135m-150k": Dimensions(n_layer=30, n_embd=576, n_head=9, n_head_kv=3, n_ff=1536, n_vocab=151936),  # 194 M
    "360m": Dimensions(n_layer=32, n_embd=960, n_head=15, n_head_kv=5, n_ff=2560, n_vocab=49152),  # as SmolLM2-360M
    "8b": Dimensions(n_layer=32, n_embd=4096, n_head=64, n_head_kv=16, n_ff=14336, n_vocab=128256),  # for GPUs
    "500m": Dimensions(n_layer=24, n_embd=896, n_head=14, n_head_kv=2, n_ff=4864, n_vocab=151936),  # as Qwen2.5-0.5B
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the byte-level alphabet, and the merges that build them."""

    tokens: list[str]
    merges: list[str]
    silent: list[int]  # ids that greedy decoding should never choose


def make_vocabulary(size: int) -> Vocabulary:
    """Return bytes, syllables, words of two and three syllables, and control tokens, in this order."""
    n_merged = size - 256 - len(CONTROL_TOKENS)
    pairs = _merges()
    merged = [next(pairs) for _ in range(n_merged)]
    letters = byte_letters()
    tokens = [letters[byte] for byte in range(256)] + [left + right for left, right in merged] + list(CONTROL_TOKENS)
    silent = [*range(0x20), *range(0x7F, 0x100), *range(256 + n_merged, size)]
    return Vocabulary(tokens, [f"{left} {right}" for left, right in merged], silent)


def _merges() -> Iterator[tuple[str, str]]:
    """Yield pairs by rank: syllables, words of two, both with a leading space, words of three.

    Every token is reachable, since a space is merged with a word only after its syllables are.
    """
    yield from ((syllable[0], syllable[1]) for syllable in SYLLABLES)
    yield from product(SYLLABLES, SYLLABLES)
    words = [*SYLLABLES, *(first + second for first, second in product(SYLLABLES, SYLLABLES))]
    yield from ((SPACE, word) for word in words)
    yield from ((SPACE + word, syllable) for word, syllable in product(words[len(SYLLABLES) :], SYLLABLES))


def write_gguf(path: Path, shape: Dimensions, seed: int = 1) -> int:
    """Write the model and return its number of parameters."""
    vocabulary = make_vocabulary(shape.n_vocab)
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, shape, vocabulary)
    n_params = _add_tensors(writer, shape, vocabulary, np.random.default_rng(seed))
    finish(writer)
    return n_params


def _write_metadata(writer: gguf.GGUFWriter, shape: Dimensions, vocabulary: Vocabulary) -> None:
    writer.add_name("random weights")
    writer.add_context_length(32768)
    writer.add_block_count(shape.n_layer)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    first_control = shape.n_vocab - len(CONTROL_TOKENS)
    types = [gguf.TokenType.NORMAL] * first_control + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(first_control)
    writer.add_eos_token_id(first_control + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _add_tensors(
    writer: gguf.GGUFWriter, shape: Dimensions, vocabulary: Vocabulary, random: np.random.Generator
) -> int:
    n_params = 0

    def add(name: str, values: NDArray[np.float32], quantized: bool = True) -> None:
        nonlocal n_params
        n_params += values.size
        kind = gguf.GGMLQuantizationType.Q8_0
        if quantized:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)

    def matrix(n_out: int, n_in: int) -> NDArray[np.float32]:
        return random.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(np.sqrt(n_in))

    # Embeddings are small compared with what layers add, so the next token depends on the whole context.
    embeddings = matrix(shape.n_vocab, shape.n_embd)
    embeddings[vocabulary.silent] = 0
    add("token_embd", embeddings)  # tied: also the output matrix
    n_kv = shape.n_head_kv * HEAD_DIM
    ones = np.ones(shape.n_embd, dtype=np.float32)
    for layer in range(shape.n_layer):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm", ones, quantized=False)
        add(f"{block}.attn_q", matrix(shape.n_embd, shape.n_embd))
        add(f"{block}.attn_k", matrix(n_kv, shape.n_embd))
        add(f"{block}.attn_v", matrix(n_kv, shape.n_embd))
        add(f"{block}.attn_output", matrix(shape.n_embd, shape.n_embd))
        add(f"{block}.ffn_norm", ones, quantized=False)
        add(f"{block}.ffn_gate", matrix(shape.n_ff, shape.n_embd))
        add(f"{block}.ffn_up", matrix(shape.n_ff, shape.n_embd))
        add(f"{block}.ffn_down", matrix(shape.n_embd, shape.n_ff))
    add("output_norm", ones * 3, quantized=False)  # logits with a spread of about three
    return n_params


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF with random weights for benchmarks.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=sorted(SHAPES), default="135m")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n_params = write_gguf(arguments.path, SHAPES[arguments.size], arguments.seed)
    print(f"{arguments.path}: {n_params / 1e6:.0f} M parameters, {arguments.path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
