"""Makes small substitute GGUF models for llama.cpp's server tests: seeded random weights, the same bytes every time.

    python models.py OUT --vocab-dir DIR

DIR is llama.cpp's ``models`` folder, which has files of vocabularies alone. Each model that the suite's presets name is
replaced by a tiny one.

What is written (names follow the repositories the suite asks for):
  hub/ggml-org/test-model-stories260K/stories260K-F32.gguf          tinyllama2
  hub/ggml-org/test-model-stories260K-infill/stories260K-infill-F32.gguf
  hub/ggml-org/models/bert-bge-small/ggml-model-f16.gguf            embeddings
  hub/ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf  rerank
  hub/ggml-org/models/tinyllamas/split/stories15M-q8_0-0000N-of-00003.gguf
  hub/ggml-org/stories15M_MOE/stories15M_MOE-F16.gguf               MoE
  hub/ggml-org/stories15M_MOE/moe_shakespeare15M.gguf               LoRA
  hub/ggml-org/tiny-llamas/stories15M-q4_0.gguf                     draft
  hub/ggml-org/tinygemma3-GGUF/tinygemma3-Q8_0.gguf + mmproj-tinygemma3.gguf
  hub/ggml-org/test-model-router-download/tiny-download-F16.gguf
  hub/ggml-org/test-preset-ci/preset.ini
  images/11_truck.png, images/91_cat.png
  manifest.json

Design notes
* The 512-piece SentencePiece vocabulary was fitted (simulated annealing over
  merges) so that every prompt whose token count the suite hard-codes has that
  very count (18, 46, 69, 77, 23, 104, 79, 8, 226, 21 ... tokens).  Hence the
  suite's exact numbers for usage, timings, caches and slots stay meaningful.
* "Permutation LM": row j of the output matrix leans towards the embedding of
  perm^-1(j), where perm is one cycle over the printable tokens, plus noise from
  real attention/FFN layers.  Output depends on context, does not collapse into
  a one-token loop, and its sharpness is a parameter.
* Channel 0 of the residual stream is a constant that no layer writes to; the
  output matrix uses it as a per-token bias, which keeps EOS/BOS/UNK/raw-byte
  tokens out of free-running text (they stay available to grammars).
"""

import argparse
import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter
from gguf.quants import quantize

Floats = npt.NDArray[np.float64]
Tensors = dict[str, npt.NDArray[Any]]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SP = "\u2581"

# single characters, then the fitted merges (in rank order)
CHARS = [SP, *"etaoinhsrdlucmfwgypbvkjxqz", *"ABCDEFGHIJKLMNOPQRSTUVWYZ", *"0123456789", *".,!?'\"-:;<>|_+()"]
_MERGES = """
▁t er ▁a en ▁s ▁d at or an re it ▁the le ou al ▁m ▁o ▁b ing ic el ent ▁h nd ▁l ▁n ▁to il ct am ▁C
▁de ▁S ▁u ▁A ▁and ▁T im ut ▁g ig ▁is ▁M ▁y se ve ie un ▁P ▁B he end ode ter ment ▁D ▁for ▁you ▁be ly
ver te ▁it ▁on ri ▁H ▁st ▁E ▁an eg ay ith ▁R and ▁that od ht code ▁N ere pp ▁with pe ▁k ers pt lo
▁Com ▁la ld ub ▁j ▁do ▁qu art ill ci ▁i ore li ost ▁ch ▁pr ure ong pr ite ru ▁par cc ▁li ▁ab ser
unction ran ance ▁au ven par ng ull ta ▁over si na ute po very ni ho ▁co not ▁tem ▁min ny ender
▁What ▁null ita ti ox rt ▁bro ook ▁jo ▁bes Test gi ▁brow ua emp ▁ut orem oding ▁mi ▁ir ▁q nia ▁fu
ori ▁Lo mo unc which ▁nu cap eli lat ▁ho ▁conse What ▁temp bes ev iu
"""
MERGES = _MERGES.split()


# --------------------------------------------------------------------------
# vocabularies
# --------------------------------------------------------------------------
class Vocab:
    def __init__(self, tokens: list[str], scores: list[float] | None, types: list[int], **meta: Any) -> None:
        self.tokens, self.scores, self.types, self.meta = tokens, scores, types, meta

    def __len__(self) -> int:
        return len(self.tokens)


def spm_small(extra_pieces: Sequence[str] = (), control: Sequence[str] = (), size: int = 512) -> Vocab:
    """<unk> <s> </s>, 256 byte tokens, merges, characters; `control` comes last."""
    tokens, types = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL]
    for b in range(256):
        tokens.append(f"<0x{b:02X}>")
        types.append(BYTE)
    pieces = list(MERGES) + [p for p in extra_pieces if p not in MERGES]
    pieces += list(CHARS)
    assert len(set(pieces)) == len(pieces)
    # unused pieces so that the size is a round number (never produced by merging)
    fill = 0
    while len(tokens) + len(pieces) < size:
        pieces.append(f"{SP}qz{fill}zq")
        fill += 1
    assert len(tokens) + len(pieces) == size, len(tokens) + len(pieces)
    scores = [0.0] * len(tokens)
    for i, p in enumerate(pieces):
        tokens.append(p)
        scores.append(-float(i))
        types.append(NORMAL)
    for c in control:
        tokens.append(c)
        scores.append(0.0)
        types.append(CONTROL)
    return Vocab(tokens, scores, types, model="llama", pre="default", bos=1, eos=2, unk=0, add_bos=True, add_eos=False)


def read_vocab(path: Path) -> tuple[list[str], list[float] | None, list[int]]:
    r = GGUFReader(path)

    def arr(name: str, conv: Callable[[Any], Any]) -> list[Any]:
        f = r.fields[name]
        return [conv(f.parts[i]) for i in f.data]

    tokens = arr("tokenizer.ggml.tokens", lambda p: bytes(p).decode("utf-8"))
    types = arr("tokenizer.ggml.token_type", lambda p: int(p[0]))
    scores = None
    if "tokenizer.ggml.scores" in r.fields:
        scores = arr("tokenizer.ggml.scores", lambda p: float(p[0]))
    return tokens, scores, types


def bpe_for_rerank() -> Vocab:
    """Byte-level BPE whose merges give the token counts of test_rerank_usage."""
    keep = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    byte_chars = [chr(b if b in keep else next(others)) for b in range(256)]
    g = byte_chars[32]
    text = (
        "Machine Ġlearning Ġis A Ġmachine Learn ing Which Ġcity Par is Ġcap ital Ġde Ġla Ġthe Ġand Ġof Ġa er on en es"
    )
    words = [word.replace("Ġ", g) for word in text.split()]
    merges: list[str] = []
    ranks: dict[tuple[str, str], int] = {}
    vocab: list[str] = []

    def bpe(word: str) -> list[str]:
        parts = list(word)
        while True:
            best = min(
                ((ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(itertools.pairwise(parts))),
                default=(1 << 30, 0),
            )
            if best[0] == 1 << 30:
                return parts
            i = best[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    for w in words:
        parts = bpe(w)
        while len(parts) > 1:
            left, right = parts[0], parts[1]
            ranks[(left, right)] = len(merges)
            merges.append(f"{left} {right}")
            if left + right not in vocab and len(left + right) > 1:
                vocab.append(left + right)
            parts = bpe(w)
    # the counts that the suite expects
    assert bpe("Machine") == ["Machine"]
    assert bpe("Learning") == ["Learn", "ing"]
    assert bpe("Paris") == ["Par", "is"], bpe("Paris")
    assert bpe(g + "capitale") == [g + "cap", "ital", "e"], bpe(g + "capitale")
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = specials + byte_chars + vocab
    types = [CONTROL] * 5 + [NORMAL] * (len(tokens) - 5)
    return Vocab(
        tokens,
        None,
        types,
        model="gpt2",
        pre="jina-v1-en",
        merges=merges,
        bos=0,
        pad=1,
        eos=2,
        sep=2,
        unk=3,
        mask=4,
        cls=0,
        add_bos=True,
        add_eos=True,
        add_sep=True,
    )


# --------------------------------------------------------------------------
# GGUF output
# --------------------------------------------------------------------------
def put(w: GGUFWriter, key: str, val: Any) -> None:
    if isinstance(val, bool):
        w.add_bool(key, val)
    elif isinstance(val, int):
        w.add_uint32(key, val)
    elif isinstance(val, float):
        w.add_float32(key, val)
    elif isinstance(val, str):
        w.add_string(key, val)
    else:
        w.add_array(key, val)


def put_vocab(w: GGUFWriter, v: Vocab) -> None:
    m = v.meta
    t = "tokenizer.ggml."
    w.add_string(t + "model", m["model"])
    w.add_string(t + "pre", m["pre"])
    w.add_array(t + "tokens", v.tokens)
    if v.scores is not None:
        w.add_array(t + "scores", [float(s) for s in v.scores])
    w.add_array(t + "token_type", [int(x) for x in v.types])
    if "merges" in m:
        w.add_array(t + "merges", m["merges"])
    names = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
    for k in ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "eot", "fim_pre", "fim_suf", "fim_mid"):
        if k in m:
            w.add_uint32(f"{t}{names.get(k, k)}_token_id", m[k])
    for k in ("add_bos", "add_eos", "add_sep"):
        if k in m:
            w.add_bool(t + k + "_token", m[k])
    if "add_space_prefix" in m:
        w.add_bool(t + "add_space_prefix", m["add_space_prefix"])
    if "token_type_count" in m:
        w.add_uint32(t + "token_type_count", m["token_type_count"])
    if "chat_template" in m:
        w.add_string("tokenizer.chat_template", m["chat_template"])


def write_gguf(
    path: Path,
    arch: str,
    name: str,
    kv: Mapping[str, Any],
    vocab: Vocab | None,
    tensors: Tensors,
    ftype: int | None,
    qtype: Q,
    split: int | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    args: dict[str, Any] = {}
    if split:
        args = {"split_max_tensors": split}
    w = GGUFWriter(str(path), arch, **args)
    w.add_string("general.name", name)
    if ftype is not None:
        w.add_uint32("general.file_type", ftype)
    for k, val in kv.items():
        put(w, k, val)
    if vocab is not None:
        put_vocab(w, vocab)
    for n, a in tensors.items():
        a = np.ascontiguousarray(a, dtype=np.float32)
        small = a.ndim < 2 or "norm" in n or "ffn_gate_inp" in n or "position_embd" in n or "token_types" in n
        q = Q.F32 if small else qtype
        if q in (Q.Q4_0, Q.Q8_0) and a.shape[-1] % 32:
            q = Q.F16
        if q == Q.F32:
            w.add_tensor(n, a)
        elif q == Q.F16:
            w.add_tensor(n, a.astype(np.float16))
        else:
            w.add_tensor(n, quantize(a, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# --------------------------------------------------------------------------
# weights
# --------------------------------------------------------------------------
@dataclass(frozen=True)
class Sizes:
    """of a network; all of llama's unless said otherwise"""

    n_ctx: int = 2048
    n_layer: int = 3
    n_embd: int = 64
    n_head: int = 8
    n_head_kv: int = 4
    n_ff: int = 160
    n_expert: int = 0

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head

    def kv(self, arch: str, n_vocab: int) -> dict[str, Any]:
        """the keys that every language model has"""
        return {
            arch + ".vocab_size": n_vocab,
            arch + ".context_length": self.n_ctx,
            arch + ".embedding_length": self.n_embd,
            arch + ".block_count": self.n_layer,
            arch + ".feed_forward_length": self.n_ff,
            arch + ".attention.head_count": self.n_head,
        }


BERT = Sizes(n_ctx=512, n_layer=2, n_head=4)
GEMMA = Sizes(n_ctx=8192, n_layer=6, n_head=4, n_head_kv=1)
BIAS_IN = 2.0  # value of the constant channel in every token embedding


def suppressed(vocab: Vocab) -> npt.NDArray[np.bool_]:
    """tokens kept out of free-running text: control, unknown, byte (but newline), non-ASCII, fillers"""
    out = np.zeros(len(vocab), dtype=bool)
    for i, (t, ty) in enumerate(zip(vocab.tokens, vocab.types, strict=False)):
        plain = t.replace(SP, " ")
        if ty != NORMAL or not plain.isascii() or "qz" in t:
            out[i] = True
    out[[i for i, t in enumerate(vocab.tokens) if t == "<0x0A>"]] = False
    return out


def embed_and_head(
    rng: np.random.Generator, vocab: Vocab, n_embd: int, lean: float, sharp: float, bias: float = -30.0
) -> tuple[Floats, Floats]:
    """token embeddings and output matrix of the permutation LM"""
    n = len(vocab)
    emb = rng.standard_normal((n, n_embd))
    emb[:, 0] = BIAS_IN
    sup = suppressed(vocab)
    cyc = rng.permutation(np.nonzero(~sup)[0])
    prev = np.arange(n)
    prev[cyc] = np.roll(cyc, 1)  # prev[j] = the token after which j is likely
    head = lean * emb[prev] + np.sqrt(1.0 - lean**2) * rng.standard_normal((n, n_embd))
    head *= sharp
    head[:, 0] = np.where(sup, bias / BIAS_IN, 0.0)
    return emb, head


def mat(rng: np.random.Generator, n_out: int, n_in: int, gain: float = 1.0) -> Floats:
    made: Floats = rng.standard_normal((n_out, n_in)) * (gain / np.sqrt(n_in))
    return made


def llama_layers(rng: np.random.Generator, size: Sizes, gain: float) -> Tensors:
    t: Tensors = {}
    n_embd, n_ff, n_expert = size.n_embd, size.n_ff, size.n_expert
    n_q, n_k = size.n_head * size.n_embd_head, size.n_head_kv * size.n_embd_head
    for i in range(size.n_layer):
        b = f"blk.{i}."
        t[b + "attn_norm.weight"] = np.ones(n_embd)
        t[b + "attn_q.weight"] = mat(rng, n_q, n_embd, 1.5)
        t[b + "attn_k.weight"] = mat(rng, n_k, n_embd, 1.5)
        t[b + "attn_v.weight"] = mat(rng, n_k, n_embd, 1.0)
        wo = mat(rng, n_embd, n_q, gain)
        wo[0] = 0
        t[b + "attn_output.weight"] = wo
        t[b + "ffn_norm.weight"] = np.ones(n_embd)
        if n_expert:
            t[b + "ffn_gate_inp.weight"] = mat(rng, n_expert, n_embd, 2.0)
            t[b + "ffn_gate_exps.weight"] = np.stack([mat(rng, n_ff, n_embd) for _ in range(n_expert)])
            t[b + "ffn_up_exps.weight"] = np.stack([mat(rng, n_ff, n_embd) for _ in range(n_expert)])
            dn = np.stack([mat(rng, n_embd, n_ff, gain) for _ in range(n_expert)])
            dn[:, 0] = 0
            t[b + "ffn_down_exps.weight"] = dn
        else:
            t[b + "ffn_gate.weight"] = mat(rng, n_ff, n_embd)
            t[b + "ffn_up.weight"] = mat(rng, n_ff, n_embd)
            dn = mat(rng, n_embd, n_ff, gain)
            dn[0] = 0
            t[b + "ffn_down.weight"] = dn
    return t


def llama_kv(size: Sizes, n_vocab: int) -> dict[str, Any]:
    kv = size.kv("llama", n_vocab) | {
        "llama.attention.head_count_kv": size.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": size.n_embd_head,
    }
    if size.n_expert:
        kv |= {"llama.expert_count": size.n_expert, "llama.expert_used_count": 2}
    return kv


def make_llama(
    path: Path,
    name: str,
    vocab: Vocab,
    seed: int,
    size: Sizes = Sizes(),
    lean: float = 0.35,
    sharp: float = 0.15,
    gain: float = 1.2,
    ftype: int = 0,
    qtype: Q = Q.F32,
    split: int | None = None,
    head_seed: int | None = None,
) -> None:
    """head_seed: separate seed for embeddings and output, so that two models can agree (draft/target)"""
    hrng = np.random.default_rng(seed if head_seed is None else head_seed)
    rng = np.random.default_rng(seed + 1000)
    emb, head = embed_and_head(hrng, vocab, size.n_embd, lean, sharp)
    t: Tensors = {"token_embd.weight": emb, "output_norm.weight": np.ones(size.n_embd), "output.weight": head}
    t.update(llama_layers(rng, size, gain))
    write_gguf(path, "llama", name, llama_kv(size, len(vocab)), vocab, t, ftype, qtype, split)


def make_lora(path: Path, n_layer: int, n_embd: int, rank: int, seed: int, amp: float) -> None:
    rng = np.random.default_rng(seed)
    w_kv: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(rank)}
    t: Tensors = {}
    for i in range(n_layer):
        for proj in ("attn_output", "attn_q"):
            a = rng.standard_normal((rank, n_embd)) / np.sqrt(n_embd)
            b = rng.standard_normal((n_embd, rank)) * amp / np.sqrt(rank)
            if proj == "attn_output":
                b[0] = 0
            t[f"blk.{i}.{proj}.weight.lora_a"] = a
            t[f"blk.{i}.{proj}.weight.lora_b"] = b
    write_gguf(path, "llama", "substitute LoRA", w_kv, None, t, None, Q.F32)


def make_bert(
    path: Path,
    name: str,
    vocab: Vocab,
    seed: int,
    pooling: int = 2,
    n_token_types: int = 2,
    classifier: bool = False,
) -> None:
    rng = np.random.default_rng(seed)
    n_embd, n_ff = BERT.n_embd, BERT.n_ff
    t: Tensors = {
        "token_embd.weight": rng.standard_normal((len(vocab), n_embd)),
        "position_embd.weight": rng.standard_normal((BERT.n_ctx, n_embd)) * 0.3,
        "token_types.weight": rng.standard_normal((n_token_types, n_embd)) * 0.1,
        "token_embd_norm.weight": np.ones(n_embd),
        "token_embd_norm.bias": np.zeros(n_embd),
    }
    for i in range(BERT.n_layer):
        b = f"blk.{i}."
        for p in ("attn_q", "attn_k", "attn_v", "attn_output"):
            t[b + p + ".weight"] = mat(rng, n_embd, n_embd, 1.5 if p in ("attn_q", "attn_k") else 1.0)
            t[b + p + ".bias"] = rng.standard_normal(n_embd) * 0.02
        t[b + "attn_output_norm.weight"] = np.ones(n_embd)
        t[b + "attn_output_norm.bias"] = rng.standard_normal(n_embd) * 0.02
        t[b + "ffn_up.weight"] = mat(rng, n_ff, n_embd)
        t[b + "ffn_up.bias"] = rng.standard_normal(n_ff) * 0.02
        t[b + "ffn_down.weight"] = mat(rng, n_embd, n_ff)
        t[b + "ffn_down.bias"] = rng.standard_normal(n_embd) * 0.02
        t[b + "layer_output_norm.weight"] = np.ones(n_embd)
        t[b + "layer_output_norm.bias"] = rng.standard_normal(n_embd) * 0.02
    kv = BERT.kv("bert", len(vocab)) | {
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
    }
    if classifier:
        t["cls.weight"] = mat(rng, n_embd, n_embd)
        t["cls.bias"] = rng.standard_normal(n_embd) * 0.02
        t["cls.output.weight"] = mat(rng, 1, n_embd, 3.0)
        t["cls.output.bias"] = np.zeros(1)
    vocab.meta["token_type_count"] = n_token_types
    write_gguf(path, "bert", name, kv, vocab, t, 1, Q.F16)


GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' }}"
    "{% if m['content'] is string %}{{ m['content'] | trim }}"
    "{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% elif part['type'] == 'image' %}"
    "{{ '<start_of_image>' }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


def make_gemma(path: Path, vocab: Vocab, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_embd, n_ff, n_head, head_dim = GEMMA.n_embd, GEMMA.n_ff, GEMMA.n_head, GEMMA.n_embd_head
    emb, head = embed_and_head(rng, vocab, n_embd, 0.35, 0.2)
    post = np.full(n_embd, 0.5)
    post[0] = 0.0
    t: Tensors = {
        "token_embd.weight": emb / np.sqrt(n_embd),
        "output_norm.weight": np.ones(n_embd),
        "output.weight": head,
    }
    for i in range(GEMMA.n_layer):
        b = f"blk.{i}."
        t[b + "attn_norm.weight"] = np.ones(n_embd)
        t[b + "attn_q.weight"] = mat(rng, n_head * head_dim, n_embd)
        t[b + "attn_k.weight"] = mat(rng, head_dim, n_embd)
        t[b + "attn_v.weight"] = mat(rng, head_dim, n_embd)
        t[b + "attn_output.weight"] = mat(rng, n_embd, n_head * head_dim)
        t[b + "attn_q_norm.weight"] = np.full(head_dim, 1.3)
        t[b + "attn_k_norm.weight"] = np.full(head_dim, 1.3)
        t[b + "post_attention_norm.weight"] = post
        t[b + "ffn_norm.weight"] = np.ones(n_embd)
        t[b + "ffn_gate.weight"] = mat(rng, n_ff, n_embd)
        t[b + "ffn_up.weight"] = mat(rng, n_ff, n_embd)
        t[b + "ffn_down.weight"] = mat(rng, n_embd, n_ff)
        t[b + "post_ffw_norm.weight"] = post
    kv = GEMMA.kv("gemma3", len(vocab)) | {
        "gemma3.attention.head_count_kv": GEMMA.n_head_kv,
        "gemma3.attention.key_length": head_dim,
        "gemma3.attention.value_length": head_dim,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": 512,
        "gemma3.rope.freq_base": 1000000.0,
    }
    write_gguf(path, "gemma3", "substitute tinygemma3", kv, vocab, t, 7, Q.Q8_0)


def make_mmproj(
    path: Path,
    seed: int,
    n_embd_text: int = 64,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_ff: int = 160,
    image: int = 128,
    patch: int = 8,
    merge: int = 2,
) -> None:
    rng = np.random.default_rng(seed)
    n_pos = (image // patch) ** 2
    t: Tensors = {
        "v.patch_embd.weight": rng.standard_normal((n_embd, 3, patch, patch)) / np.sqrt(3 * patch * patch),
        "v.patch_embd.bias": rng.standard_normal(n_embd) * 0.02,
        "v.position_embd.weight": rng.standard_normal((n_pos, n_embd)) * 0.3,
        "v.post_ln.weight": np.ones(n_embd),
        "v.post_ln.bias": np.zeros(n_embd),
        "mm.soft_emb_norm.weight": np.ones(n_embd),
        "mm.input_projection.weight": mat(rng, n_embd, n_embd_text),
    }
    for i in range(n_layer):
        b = f"v.blk.{i}."
        for p in ("attn_q", "attn_k", "attn_v", "attn_out"):
            t[b + p + ".weight"] = mat(rng, n_embd, n_embd, 1.0)
            t[b + p + ".bias"] = rng.standard_normal(n_embd) * 0.02
        for p in ("ln1", "ln2"):
            t[b + p + ".weight"] = np.ones(n_embd)
            t[b + p + ".bias"] = np.zeros(n_embd)
        t[b + "ffn_up.weight"] = mat(rng, n_ff, n_embd)
        t[b + "ffn_up.bias"] = np.zeros(n_ff)
        t[b + "ffn_down.weight"] = mat(rng, n_embd, n_ff)
        t[b + "ffn_down.bias"] = np.zeros(n_embd)
    v = "clip.vision."
    kv: dict[str, Any] = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        v + "image_size": image,
        v + "patch_size": patch,
        v + "embedding_length": n_embd,
        v + "feed_forward_length": n_ff,
        v + "block_count": n_layer,
        v + "projection_dim": n_embd_text,
        v + "attention.head_count": n_head,
        v + "attention.layer_norm_epsilon": 1e-6,
        v + "image_mean": [0.5, 0.5, 0.5],
        v + "image_std": [0.5, 0.5, 0.5],
        v + "projector.scale_factor": merge,
    }
    write_gguf(path, "clip", "substitute mmproj", kv, None, t, 1, Q.F16)


def make_png(path: Path, seed: int, size: int = 32) -> None:
    """a small RGB picture, written without an imaging library"""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size]
    f = rng.uniform(0.1, 0.6, (3, 2))
    img = np.stack([127 + 120 * np.sin(f[c, 0] * x + f[c, 1] * y + seed) for c in range(3)], -1).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in img)

    def chunk(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )


# --------------------------------------------------------------------------
def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--vocab-dir", required=True, help="with ggml-vocab-llama-spm.gguf and ggml-vocab-bert-bge.gguf")
    a = ap.parse_args()
    out, vd = Path(a.out), Path(a.vocab_dir)
    hub = out / "hub" / "ggml-org"
    small = spm_small()
    make_llama(hub / "test-model-stories260K/stories260K-F32.gguf", "substitute stories260K", small, seed=1)
    v = spm_small(control=["<fim_pre>", "<fim_suf>", "<fim_mid>"])
    v.meta.update(fim_pre=512, fim_suf=513, fim_mid=514)
    make_llama(hub / "test-model-stories260K-infill/stories260K-infill-F32.gguf", "substitute infill", v, seed=2)
    make_llama(
        hub / "test-model-router-download/tiny-download-F16.gguf",
        "substitute download",
        small,
        seed=3,
        ftype=1,
        qtype=Q.F16,
    )
    tok, _, ty = read_vocab(vd / "ggml-vocab-bert-bge.gguf")
    v = Vocab(tok, None, ty, model="bert", pre="bert-bge", unk=100, sep=102, pad=0, cls=101, mask=103)
    make_bert(hub / "models/bert-bge-small/ggml-model-f16.gguf", "substitute bge-small", v, seed=4)
    make_bert(
        hub / "models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf",
        "substitute jina-reranker",
        bpe_for_rerank(),
        seed=21,
        pooling=4,
        classifier=True,
    )
    tok, sc, ty = read_vocab(vd / "ggml-vocab-llama-spm.gguf")
    big = Vocab(tok, sc, ty, model="llama", pre="default", bos=1, eos=2, unk=0, add_bos=True, add_eos=False)
    sharp: dict[str, Any] = {"lean": 0.97, "sharp": 0.30, "head_seed": 50}
    make_llama(
        hub / "stories15M_MOE/stories15M_MOE-F16.gguf",
        "substitute stories15M_MOE",
        big,
        seed=5,
        size=Sizes(n_layer=2, n_expert=4),
        gain=0.75,
        ftype=1,
        qtype=Q.F16,
        **sharp,
    )
    make_llama(
        hub / "tiny-llamas/stories15M-q4_0.gguf",
        "substitute draft",
        big,
        seed=6,
        size=Sizes(n_layer=1),
        gain=0.2,
        ftype=2,
        qtype=Q.Q4_0,
        **sharp,
    )
    make_llama(
        hub / "models/tinyllamas/split/stories15M-q8_0.gguf",
        "substitute split",
        big,
        seed=7,
        size=Sizes(n_layer=2),
        gain=0.9,
        ftype=7,
        qtype=Q.Q8_0,
        split=8,
        **sharp,
    )
    make_lora(hub / "stories15M_MOE/moe_shakespeare15M.gguf", n_layer=2, n_embd=64, rank=8, seed=8, amp=2.5)
    v = spm_small(
        extra_pieces=[SP + "hel", SP + "hello"],
        control=["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"],
        size=576,
    )
    v.meta.update(eot=577, add_space_prefix=False, chat_template=GEMMA_TEMPLATE)
    make_gemma(hub / "tinygemma3-GGUF/tinygemma3-Q8_0.gguf", v, seed=9)
    make_mmproj(hub / "tinygemma3-GGUF/mmproj-tinygemma3.gguf", seed=10)
    make_png(out / "images/11_truck.png", 11)
    make_png(out / "images/91_cat.png", 91)
    preset = hub / "test-preset-ci/preset.ini"
    preset.parent.mkdir(parents=True, exist_ok=True)
    preset.write_text(
        "[tinygemma3-preset]\nhf-repo = ggml-org/tinygemma3-GGUF:Q8_0\n\n"
        "[stories260K-test]\nhf-repo = ggml-org/test-model-stories260K\n"
    )
    man = {}
    for p in sorted(out.rglob("*")):
        if p.is_file() and p.name != "manifest.json":
            man[str(p.relative_to(out))] = {
                "size": p.stat().st_size,
                "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
            }
    (out / "manifest.json").write_text(json.dumps(man, indent=1, sort_keys=True) + "\n")
    for k, m in man.items():
        print(f"{m['size']:10d}  {k}")


if __name__ == "__main__":
    main()
