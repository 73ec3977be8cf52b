"""Generate small substitute GGUF models for llama.cpp's server tests, with seeded random weights and identical bytes.

    python models.py OUT --vocab-dir DIR

DIR is llama.cpp's ``models`` folder, which has files of vocabularies. Each model of the suite's presets gets a tiny
substitute. `main` writes them into OUT/hub under the names in the suite, two images, and a manifest with all hashes.

- The 512-piece SentencePiece vocabulary was fitted (simulated annealing over merges), so that each prompt has the token
  count that the suite expects. So its numbers for usage, timings, caches and slots stay meaningful.
- "Permutation LM": row j of the output matrix is similar to the embedding of perm^-1(j), where perm is one cycle over
  the printable tokens, plus noise from real attention and FFN layers. Output depends on context and does not collapse
  into a loop of one token. Its sharpness is a parameter.
- Channel 0 of the residual stream is a constant that no layer writes to. The output matrix uses it as a bias per token,
  which keeps EOS, BOS, UNK and raw bytes out of unconstrained text; grammars may still choose them.
"""

import argparse
import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter
from gguf.quants import quantize

Floats = npt.NDArray[np.float64]

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
SP = "\u2581"

# single characters and the fitted merges (in rank order)
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
TOKENIZER = "tokenizer.ggml."


# ---- vocabularies


@dataclass
class Vocab:
    """Tokens with their types, and the other ``tokenizer.*`` keys; ``more``: those after the tokens."""

    tokens: list[str]
    types: list[int]
    model: str
    pre: str
    scores: list[float] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def keys(self) -> dict[str, Any]:
        scores = {} if self.scores is None else {"scores": self.scores}
        named = {"model": self.model, "pre": self.pre, "tokens": self.tokens, **scores, "token_type": self.types}
        found: dict[str, Any] = {TOKENIZER + name: value for name, value in (named | self.more).items()}
        return found

    def with_keys(self, **more: Any) -> "Vocab":
        """Return the same vocabulary with further keys; ids of tokens by their short names."""
        return Vocab(self.tokens, self.types, self.model, self.pre, self.scores, self.more | _ids(more))


def _ids(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_token_id" if type(value) is int else name: value for name, value in keys.items()}


LLAMA = _ids({"bos": 1, "eos": 2, "unknown": 0}) | {"add_bos_token": True, "add_eos_token": False}


def spm_small(extra_pieces: Sequence[str] = (), control: Sequence[str] = (), size: int = 512) -> Vocab:
    """Return a SentencePiece vocabulary: <unk> <s> </s>, 256 byte tokens, merges, characters, and `control` tokens."""
    pieces = [*MERGES, *(piece for piece in extra_pieces if piece not in MERGES), *CHARS]
    assert len(set(pieces)) == len(pieces)
    n_first = 3 + 256
    # unused pieces up to `size`, which no merge produces
    pieces += [f"{SP}qz{n}zq" for n in range(size - n_first - len(pieces))]
    assert n_first + len(pieces) == size
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, *control]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *[CONTROL] * len(control)]
    scores = [0.0] * n_first + [-float(i) for i in range(len(pieces))] + [0.0] * len(control)
    return Vocab(tokens, types, "llama", "default", scores, LLAMA)


def read_vocab(path: Path, model: str, pre: str, more: dict[str, Any]) -> Vocab:
    """Return the tokens of a GGUF file with other ``tokenizer.*`` keys."""
    fields = GGUFReader(path).fields

    def array(name: str) -> list[Any]:
        found = fields[TOKENIZER + name]
        return [found.parts[i] for i in found.data]

    tokens = [bytes(part).decode("utf-8") for part in array("tokens")]
    types = [int(part[0]) for part in array("token_type")]
    scores = [float(part[0]) for part in array("scores")] if model == "llama" else None
    return Vocab(tokens, types, model, pre, scores, more)


def bpe_for_rerank() -> Vocab:
    """Return a byte-level BPE vocabulary whose merges give the token counts of test_rerank_usage."""
    keep = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    byte_chars = [chr(b if b in keep else next(others)) for b in range(256)]
    g = byte_chars[32]
    text = (
        "Machine Ġlearning Ġis A Ġmachine Learn ing Which Ġcity Par is Ġcap ital Ġde Ġla Ġthe Ġand Ġof Ġa er on en es"
    )
    ranks: dict[tuple[str, str], int] = {}  # of pairs, in the order in which they are merged

    def bpe(word: str) -> list[str]:
        parts = list(word)
        while merges := [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]:
            i = min(merges)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return parts

    for word in text.replace("Ġ", g).split():
        while len(parts := bpe(word)) > 1:
            ranks[parts[0], parts[1]] = len(ranks)
    # the counts that the suite expects
    assert bpe("Machine") == ["Machine"]
    assert bpe("Learning") == ["Learn", "ing"]
    assert bpe("Paris") == ["Par", "is"], bpe("Paris")
    assert bpe(g + "capitale") == [g + "cap", "ital", "e"], bpe(g + "capitale")
    tokens = [*("<s>", "<pad>", "</s>", "<unk>", "<mask>"), *byte_chars, *dict.fromkeys(a + b for a, b in ranks)]
    ids = _ids({"bos": 0, "eos": 2, "unknown": 3, "seperator": 2, "padding": 1, "cls": 0, "mask": 4})
    more = {"merges": [f"{a} {b}" for a, b in ranks], **ids}
    more |= {f"add_{name}_token": True for name in ("bos", "eos", "sep")}
    return Vocab(tokens, [CONTROL] * 5 + [NORMAL] * (len(tokens) - 5), "gpt2", "jina-v1-en", more=more)


# ---- GGUF output


def put(w: GGUFWriter, key: str, value: Any) -> None:
    kinds: dict[type, Any] = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string}
    kinds.get(type(value), w.add_array)(key, value)


def write_gguf(
    path: Path,
    arch: str,
    name: str,
    keys: Mapping[str, Any],
    tensors: "Weights",
    qtype: Q,
    ftype: int | None,
    split: int = 0,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    w = GGUFWriter(str(path), arch, split_max_tensors=split)
    w.add_string("general.name", name)
    if ftype is not None:
        w.add_uint32("general.file_type", ftype)
    for key, value in keys.items():
        put(w, key, value)
    for n, array in tensors.items():
        a = np.ascontiguousarray(array, dtype=np.float32)
        small = a.ndim < 2 or any(part in n for part in ("norm", "ffn_gate_inp", "position_embd", "token_types"))
        q = Q.F32 if small else qtype
        if q in (Q.Q4_0, Q.Q8_0) and a.shape[-1] % 32:
            q = Q.F16
        if q in (Q.F32, Q.F16):
            w.add_tensor(n, a if q == Q.F32 else a.astype(np.float16))
        else:
            w.add_tensor(n, quantize(a, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- weights


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network; the defaults are those of most substitutes of the architecture llama."""

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

    def keys(self, arch: str, vocab: Vocab, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of every language model, `more` keys of the architecture, and those of the vocabulary."""
        own = {
            "vocab_size": len(vocab.tokens),
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "block_count": self.n_layer,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
        }
        return {f"{arch}.{name}": value for name, value in (own | dict(more)).items()} | vocab.keys()


BERT = Sizes(n_ctx=512, n_layer=2, n_head=4)
GEMMA = Sizes(n_ctx=8192, n_layer=6, n_head=4, n_head_kv=1)
BIAS_IN = 2.0  # value of the constant channel in every token embedding


class Weights(dict[str, Floats]):
    """Tensors by name, drawn in the order in which they are added."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self[name] = self.rng.standard_normal(shape) * scale

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0, n: int = 0, *, silent: bool = False) -> None:
        """Add `n` matrices as one tensor (0: a plain matrix); `silent`: they do not write to the first channel."""
        scale = gain / np.sqrt(n_in)
        one = self.rng.standard_normal((max(n, 1), n_out, n_in)) * scale
        if silent:
            one[:, 0] = 0
        self[name] = one if n else one[0]

    def fill(self, n: int, value: float, *names: str) -> None:
        for name in names:
            self[name] = np.full(n, value)


def suppressed(vocab: Vocab) -> npt.NDArray[np.bool_]:
    """Mark tokens to keep out of unconstrained text: control, unknown, byte (except newline), non-ASCII, unused."""
    tokens = zip(vocab.tokens, vocab.types, strict=True)
    plain = [t == "<0x0A>" or (ty == NORMAL and t.replace(SP, " ").isascii() and "qz" not in t) for t, ty in tokens]
    return ~np.array(plain)


def embed_and_head(
    rng: np.random.Generator, vocab: Vocab, n_embd: int, lean: float, sharp: float, bias: float = -30.0
) -> tuple[Floats, Floats]:
    """Return the token embeddings and the output matrix of the permutation LM.

    `lean`: cosine of a row and the embedding of its likely predecessor; `sharp`: scale of the logits.
    """
    n = len(vocab.tokens)
    emb = rng.standard_normal((n, n_embd))
    emb[:, 0] = BIAS_IN
    unwanted = suppressed(vocab)
    cycle = rng.permutation(np.nonzero(~unwanted)[0])
    prev = np.arange(n)
    prev[cycle] = np.roll(cycle, 1)  # prev[j] = the token after which j is likely
    head = lean * emb[prev] + np.sqrt(1.0 - lean**2) * rng.standard_normal((n, n_embd))
    head *= sharp
    head[:, 0] = np.where(unwanted, bias / BIAS_IN, 0.0)
    return emb, head


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
    split: int = 0,
    head_seed: int | None = None,
) -> None:
    """Write a model of the architecture llama.

    `head_seed`: a separate seed for embeddings and output, so that a draft model predicts the tokens of its target.
    """
    t = Weights(seed + 1000)
    hrng = np.random.default_rng(seed if head_seed is None else head_seed)
    n_embd, n_ff, n_expert = size.n_embd, size.n_ff, size.n_expert
    n_k = size.n_head_kv * size.n_embd_head
    emb, head = embed_and_head(hrng, vocab, n_embd, lean, sharp)
    t |= {"token_embd.weight": emb, "output_norm.weight": np.ones(n_embd), "output.weight": head}
    for i in range(size.n_layer):
        b = f"blk.{i}."
        t.fill(n_embd, 1, b + "attn_norm.weight")
        t.matrix(b + "attn_q.weight", n_embd, n_embd, 1.5)
        t.matrix(b + "attn_k.weight", n_k, n_embd, 1.5)
        t.matrix(b + "attn_v.weight", n_k, n_embd)
        t.matrix(b + "attn_output.weight", n_embd, n_embd, gain, silent=True)
        t.fill(n_embd, 1, b + "ffn_norm.weight")
        experts = ""
        if n_expert:
            t.matrix(b + "ffn_gate_inp.weight", n_expert, n_embd, 2.0)
            experts = "_exps"
        t.matrix(f"{b}ffn_gate{experts}.weight", n_ff, n_embd, n=n_expert)
        t.matrix(f"{b}ffn_up{experts}.weight", n_ff, n_embd, n=n_expert)
        t.matrix(f"{b}ffn_down{experts}.weight", n_embd, n_ff, gain, n_expert, silent=True)
    more: dict[str, Any] = {
        "attention.head_count_kv": size.n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": size.n_embd_head,
    }
    more |= {"expert_count": n_expert, "expert_used_count": 2} if n_expert else {}
    write_gguf(path, "llama", name, size.keys("llama", vocab, more), t, qtype, ftype, split)


def make_lora(path: Path, n_layer: int, n_embd: int, rank: int, seed: int, amp: float) -> None:
    t = Weights(seed)
    for i in range(n_layer):
        for proj in ("attn_output", "attn_q"):
            a = t.rng.standard_normal((rank, n_embd)) / np.sqrt(n_embd)
            b = t.rng.standard_normal((n_embd, rank)) * amp / np.sqrt(rank)
            if proj == "attn_output":
                b[0] = 0
            t |= {f"blk.{i}.{proj}.weight.lora_a": a, f"blk.{i}.{proj}.weight.lora_b": b}
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(rank)}
    write_gguf(path, "llama", "substitute LoRA", keys, t, Q.F32, None)


def make_bert(path: Path, name: str, vocab: Vocab, seed: int, pooling: int = 2, *, classifier: bool = False) -> None:
    t = Weights(seed)
    n_embd, n_ff, n_token_types = BERT.n_embd, BERT.n_ff, 2
    t.normal("token_embd.weight", len(vocab.tokens), n_embd)
    t.normal("position_embd.weight", BERT.n_ctx, n_embd, scale=0.3)
    t.normal("token_types.weight", n_token_types, n_embd, scale=0.1)
    t.fill(n_embd, 1, "token_embd_norm.weight")
    t.fill(n_embd, 0, "token_embd_norm.bias")
    for i in range(BERT.n_layer):
        b = f"blk.{i}."
        for p in ("attn_q", "attn_k", "attn_v", "attn_output"):
            t.matrix(f"{b}{p}.weight", n_embd, n_embd, 1.5 if p in ("attn_q", "attn_k") else 1.0)
            t.normal(f"{b}{p}.bias", n_embd, scale=0.02)
        t.fill(n_embd, 1, b + "attn_output_norm.weight")
        t.normal(b + "attn_output_norm.bias", n_embd, scale=0.02)
        t.matrix(b + "ffn_up.weight", n_ff, n_embd)
        t.normal(b + "ffn_up.bias", n_ff, scale=0.02)
        t.matrix(b + "ffn_down.weight", n_embd, n_ff)
        t.normal(b + "ffn_down.bias", n_embd, scale=0.02)
        t.fill(n_embd, 1, b + "layer_output_norm.weight")
        t.normal(b + "layer_output_norm.bias", n_embd, scale=0.02)
    if classifier:
        t.matrix("cls.weight", n_embd, n_embd)
        t.normal("cls.bias", n_embd, scale=0.02)
        t.matrix("cls.output.weight", 1, n_embd, 3.0)
        t.fill(1, 0, "cls.output.bias")
    more = {"attention.layer_norm_epsilon": 1e-12, "attention.causal": False, "pooling_type": pooling}
    keys = BERT.keys("bert", vocab, more) | {TOKENIZER + "token_type_count": n_token_types}
    write_gguf(path, "bert", name, keys, t, Q.F16, 1)


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
    t = Weights(seed)
    n_embd, n_ff, n_head, head_dim = GEMMA.n_embd, GEMMA.n_ff, GEMMA.n_head, GEMMA.n_embd_head
    emb, head = embed_and_head(t.rng, vocab, n_embd, 0.35, 0.2)
    post = np.full(n_embd, 0.5)
    post[0] = 0.0
    t["token_embd.weight"] = emb / np.sqrt(n_embd)
    t |= {"output_norm.weight": np.ones(n_embd), "output.weight": head}
    for i in range(GEMMA.n_layer):
        b = f"blk.{i}."
        t.fill(n_embd, 1, b + "attn_norm.weight")
        t.matrix(b + "attn_q.weight", n_head * head_dim, n_embd)
        t.matrix(b + "attn_k.weight", head_dim, n_embd)
        t.matrix(b + "attn_v.weight", head_dim, n_embd)
        t.matrix(b + "attn_output.weight", n_embd, n_head * head_dim)
        t.fill(head_dim, 1.3, b + "attn_q_norm.weight", b + "attn_k_norm.weight")
        t[b + "post_attention_norm.weight"] = post
        t.fill(n_embd, 1, b + "ffn_norm.weight")
        t.matrix(b + "ffn_gate.weight", n_ff, n_embd)
        t.matrix(b + "ffn_up.weight", n_ff, n_embd)
        t.matrix(b + "ffn_down.weight", n_embd, n_ff)
        t[b + "post_ffw_norm.weight"] = post
    more = {
        "attention.head_count_kv": GEMMA.n_head_kv,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 512,
        "rope.freq_base": 1000000.0,
    }
    keys = GEMMA.keys("gemma3", vocab, more) | {"tokenizer.chat_template": GEMMA_TEMPLATE}
    write_gguf(path, "gemma3", "substitute tinygemma3", keys, t, Q.Q8_0, 7)


def make_mmproj(path: Path, seed: int) -> None:
    n_embd, n_layer, n_head, n_ff, image, patch, merge = 64, 2, 4, 160, 128, 8, 2
    t = Weights(seed)
    t["v.patch_embd.weight"] = t.rng.standard_normal((n_embd, 3, patch, patch)) / np.sqrt(3 * patch * patch)
    t.normal("v.patch_embd.bias", n_embd, scale=0.02)
    t.normal("v.position_embd.weight", (image // patch) ** 2, n_embd, scale=0.3)
    t.fill(n_embd, 1, "v.post_ln.weight")
    t.fill(n_embd, 0, "v.post_ln.bias")
    t.fill(n_embd, 1, "mm.soft_emb_norm.weight")
    t.matrix("mm.input_projection.weight", n_embd, n_embd)
    for i in range(n_layer):
        b = f"v.blk.{i}."
        for p in ("attn_q", "attn_k", "attn_v", "attn_out"):
            t.matrix(f"{b}{p}.weight", n_embd, n_embd)
            t.normal(f"{b}{p}.bias", n_embd, scale=0.02)
        for p in ("ln1", "ln2"):
            t.fill(n_embd, 1, f"{b}{p}.weight")
            t.fill(n_embd, 0, f"{b}{p}.bias")
        t.matrix(b + "ffn_up.weight", n_ff, n_embd)
        t.fill(n_ff, 0, b + "ffn_up.bias")
        t.matrix(b + "ffn_down.weight", n_embd, n_ff)
        t.fill(n_embd, 0, b + "ffn_down.bias")
    vision: dict[str, Any] = {
        "image_size": image,
        "patch_size": patch,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "block_count": n_layer,
        "projection_dim": n_embd,
        "attention.head_count": n_head,
        "attention.layer_norm_epsilon": 1e-6,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "projector.scale_factor": merge,
    }
    keys: dict[str, Any] = {"general.type": "mmproj", "clip.has_vision_encoder": True}
    keys |= {"clip.projector_type": "gemma3", "clip.use_gelu": True}
    keys |= {f"clip.vision.{name}": value for name, value in vision.items()}
    write_gguf(path, "clip", "substitute mmproj", keys, t, Q.F16, 1)


def make_png(path: Path, seed: int, size: int = 32) -> None:
    """Write a small RGB image."""
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


PRESET = """[tinygemma3-preset]
hf-repo = ggml-org/tinygemma3-GGUF:Q8_0

[stories260K-test]
hf-repo = ggml-org/test-model-stories260K
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    vocabularies = "with ggml-vocab-llama-spm.gguf and ggml-vocab-bert-bge.gguf"
    parser.add_argument("--vocab-dir", type=Path, required=True, help=vocabularies)
    options = parser.parse_args()
    out, vocab_dir = options.out, options.vocab_dir
    hub = out / "hub" / "ggml-org"
    small = spm_small()
    make_llama(hub / "test-model-stories260K/stories260K-F32.gguf", "substitute stories260K", small, seed=1)
    v = spm_small(control=["<fim_pre>", "<fim_suf>", "<fim_mid>"]).with_keys(fim_pre=512, fim_suf=513, fim_mid=514)
    make_llama(hub / "test-model-stories260K-infill/stories260K-infill-F32.gguf", "substitute infill", v, seed=2)
    f16: dict[str, Any] = {"ftype": 1, "qtype": Q.F16}
    make_llama(hub / "test-model-router-download/tiny-download-F16.gguf", "substitute download", small, seed=3, **f16)
    ids = _ids({"unknown": 100, "seperator": 102, "padding": 0, "cls": 101, "mask": 103})
    v = read_vocab(vocab_dir / "ggml-vocab-bert-bge.gguf", "bert", "bert-bge", ids)
    make_bert(hub / "models/bert-bge-small/ggml-model-f16.gguf", "substitute bge-small", v, seed=4)
    ranker = hub / "models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf"
    make_bert(ranker, "substitute jina-reranker", bpe_for_rerank(), seed=21, pooling=4, classifier=True)
    big = read_vocab(vocab_dir / "ggml-vocab-llama-spm.gguf", "llama", "default", LLAMA)
    sharp: dict[str, Any] = {"lean": 0.97, "sharp": 0.30, "head_seed": 50}
    moe = {"size": Sizes(n_layer=2, n_expert=4), "gain": 0.75, **f16}
    draft = {"size": Sizes(n_layer=1), "gain": 0.2, "ftype": 2, "qtype": Q.Q4_0}
    parts = {"size": Sizes(n_layer=2), "gain": 0.9, "ftype": 7, "qtype": Q.Q8_0, "split": 8}
    for seed, name, path, more in (
        (5, "stories15M_MOE", "stories15M_MOE/stories15M_MOE-F16.gguf", moe),
        (6, "draft", "tiny-llamas/stories15M-q4_0.gguf", draft),
        (7, "split", "models/tinyllamas/split/stories15M-q8_0.gguf", parts),
    ):
        make_llama(hub / path, f"substitute {name}", big, seed, **more, **sharp)
    make_lora(hub / "stories15M_MOE/moe_shakespeare15M.gguf", n_layer=2, n_embd=64, rank=8, seed=8, amp=2.5)
    v = spm_small(
        extra_pieces=[SP + "hel", SP + "hello"],
        control=["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"],
        size=576,
    ).with_keys(eot=577, add_space_prefix=False)
    make_gemma(hub / "tinygemma3-GGUF/tinygemma3-Q8_0.gguf", v, seed=9)
    make_mmproj(hub / "tinygemma3-GGUF/mmproj-tinygemma3.gguf", seed=10)
    make_png(out / "images/11_truck.png", 11)
    make_png(out / "images/91_cat.png", 91)
    preset = hub / "test-preset-ci/preset.ini"
    preset.parent.mkdir(parents=True, exist_ok=True)
    preset.write_text(PRESET)
    manifest = {
        str(p.relative_to(out)): {"size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in sorted(out.rglob("*"))
        if p.is_file() and p.name != "manifest.json"
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    for name, entry in manifest.items():
        print(f"{entry['size']:10d}  {name}")


if __name__ == "__main__":
    main()
