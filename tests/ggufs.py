"""Writes tiny GGUF files with random weights, so that tests run the native library on real files within seconds.

``gguf_file(folder, TinyModel(...))`` writes once per folder and options. The vocabulary is byte-level BPE: the 256
bytes first, then merges learned from a short text, then the special tokens.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, LlamaFileType, TokenType

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together to see "
    "what the server is doing with the tokens that it reads in the stream of requests, one after the other, while "
    "the answer is written in small pieces that arrive in order at the client; 0123456789 hello world this is a test"
)
Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Options of one file. ``n_vocab`` counts bytes, merges and specials; more than BPE finds is filled up."""

    arch: Literal["llama", "gemma3", "mamba", "unknown"] = "llama"
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_vocab: int = 400
    n_ctx: int = 2048
    n_swa: int = 32  # gemma3 only
    seed: int = 1
    ftype: Literal["F32", "F16"] = "F32"
    chat_template: str | None = CHATML
    nan_weights: bool = False

    @property
    def n_ff(self) -> int:
        return 2 * self.n_embd


def gguf_file(folder: Path, model: TinyModel = TinyModel()) -> Path:
    """The path of the file for `model`, written if it is not there."""
    digest = hashlib.sha256(repr(model).encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    path = folder / f"tiny-{model.arch}-{digest}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _write(part, model)
        part.rename(path)
    return path


def truncated(path: Path, keep: float = 0.5) -> Path:
    """A copy that ends in the middle."""
    data = path.read_bytes()
    cut = path.with_name(f"truncated-{keep}-{path.name}")
    cut.write_bytes(data[: int(len(data) * keep)])
    return cut


def damaged(path: Path, at: int, replacement: bytes) -> Path:
    """A copy with other bytes at `at`."""
    data = bytearray(path.read_bytes())
    data[at : at + len(replacement)] = replacement
    copy = path.with_name(f"damaged-{at}-{replacement.hex()[:16]}-{path.name}")
    copy.write_bytes(bytes(data))
    return copy


def _write(path: Path, model: TinyModel) -> None:
    writer = GGUFWriter(path, model.arch)
    _write_hyperparameters(writer, model)
    _write_vocabulary(writer, model)
    rng = np.random.default_rng(model.seed)
    for name, shape in _tensors(model):
        data = _weights(rng, name, shape)
        if model.nan_weights and name == "output.weight":
            data[:] = np.nan
        half = model.ftype == "F16" and len(shape) > 1
        writer.add_tensor(name, data.astype(np.float16) if half else data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_hyperparameters(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_name(f"tiny {model.arch}")
    writer.add_file_type(LlamaFileType.ALL_F32 if model.ftype == "F32" else LlamaFileType.MOSTLY_F16)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_block_count(model.n_layer)
    writer.add_layer_norm_rms_eps(1e-5)
    if model.arch == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * model.n_embd)
        writer.add_ssm_state_size(16)
        writer.add_ssm_time_step_rank(model.n_embd // 16)
        return
    writer.add_feed_forward_length(model.n_ff)
    writer.add_head_count(model.n_head)
    writer.add_head_count_kv(model.n_head_kv)
    writer.add_key_length(model.n_embd // model.n_head)
    writer.add_value_length(model.n_embd // model.n_head)
    writer.add_rope_dimension_count(model.n_embd // model.n_head)
    writer.add_rope_freq_base(10000.0)
    if model.arch == "gemma3":
        writer.add_sliding_window(model.n_swa)


def _write_vocabulary(writer: GGUFWriter, model: TinyModel) -> None:
    letters, merges = _byte_pairs(model.n_vocab - 256 - len(SPECIALS))
    tokens = [*letters, *("".join(pair) for pair in merges)]
    kinds = [int(TokenType.NORMAL)] * len(tokens)
    filler = model.n_vocab - len(tokens) - len(SPECIALS)
    tokens += [f"<unused{i}>" for i in range(filler)] + list(SPECIALS)
    kinds += [int(TokenType.UNUSED)] * filler + [int(TokenType.CONTROL)] * len(SPECIALS)
    ids = {token: i for i, token in enumerate(tokens)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(ids["<s>"])
    writer.add_eos_token_id(ids["</s>"])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_add_bos_token(True)
    if model.chat_template is not None:
        writer.add_chat_template(model.chat_template)


def _tensors(model: TinyModel) -> list[tuple[str, tuple[int, ...]]]:
    """Names and numpy shapes (GGUF's, reversed)."""
    outer = [
        ("token_embd.weight", (model.n_vocab, model.n_embd)),
        ("output_norm.weight", (model.n_embd,)),
        ("output.weight", (model.n_vocab, model.n_embd)),
    ]
    layer = _mamba_layer(model) if model.arch == "mamba" else _attention_layer(model)
    return outer + [(f"blk.{i}.{name}", shape) for i in range(model.n_layer) for name, shape in layer]


def _attention_layer(model: TinyModel) -> list[tuple[str, tuple[int, ...]]]:
    n_embd, n_ff, head = model.n_embd, model.n_ff, model.n_embd // model.n_head
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("attn_norm.weight", (n_embd,)),
        ("attn_q.weight", (n_embd, n_embd)),
        ("attn_k.weight", (model.n_head_kv * head, n_embd)),
        ("attn_v.weight", (model.n_head_kv * head, n_embd)),
        ("attn_output.weight", (n_embd, n_embd)),
        ("ffn_norm.weight", (n_embd,)),
        ("ffn_gate.weight", (n_ff, n_embd)),
        ("ffn_up.weight", (n_ff, n_embd)),
        ("ffn_down.weight", (n_embd, n_ff)),
    ]
    if model.arch == "gemma3":
        tensors += [("post_attention_norm.weight", (n_embd,)), ("post_ffw_norm.weight", (n_embd,))]
        tensors += [("attn_q_norm.weight", (head,)), ("attn_k_norm.weight", (head,))]
    return tensors


def _mamba_layer(model: TinyModel) -> list[tuple[str, tuple[int, ...]]]:
    n_embd, inner, state, rank = model.n_embd, 2 * model.n_embd, 16, model.n_embd // 16
    return [
        ("attn_norm.weight", (n_embd,)),
        ("ssm_in.weight", (2 * inner, n_embd)),
        ("ssm_conv1d.weight", (inner, 4)),
        ("ssm_conv1d.bias", (inner,)),
        ("ssm_x.weight", (rank + 2 * state, inner)),
        ("ssm_dt.weight", (inner, rank)),
        ("ssm_dt.bias", (inner,)),
        ("ssm_a", (inner, state)),
        ("ssm_d", (inner,)),
        ("ssm_out.weight", (n_embd, inner)),
    ]


def _weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith("ssm_a"):
        return -np.abs(rng.standard_normal(shape, np.float32))
    # wide enough that the next token depends on what came before, narrow enough to stay finite
    return rng.standard_normal(shape, np.float32) * np.float32(1.5 / np.sqrt(shape[-1]))


@cache
def _byte_pairs(n_merges: int) -> tuple[list[str], list[tuple[str, str]]]:
    letter = _byte_letters()
    words = Counter(tuple(letter[b] for b in (" " + word).encode()) for word in CORPUS.split())
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    return [letter[b] for b in range(256)], merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    others = [b for b in range(256) if b not in letters]
    return letters | {b: chr(256 + i) for i, b in enumerate(others)}
