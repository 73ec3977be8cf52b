"""Names, shapes and random weights of all tensors. Shapes are in numpy's order, which is GGUF's reversed."""

import numpy as np

from tests.support.ggufs.model import Array, TinyModel

Shapes = list[tuple[str, tuple[int, ...]]]

SSM_STATE = 16
SSM_CONV = 4
DELTA_GROUPS = 2
EXPERTS_USED = 2
NEXTN_EXPERTS = 4
T5_BUCKETS = 32


def tensors(model: TinyModel) -> Shapes:
    """Return the name and shape of every tensor, those of the layers last."""
    if model.arch == "bert":
        return _bert_outer(model) + _layers([_bert_layer(model)] * model.n_layer)
    if model.arch in ("t5", "t5encoder"):
        return _t5(model)
    outer: Shapes = [
        ("token_embd.weight", (model.n_vocab, model.n_embd)),
        ("output_norm.weight", (model.n_embd,)),
        ("output.weight", (model.n_vocab, model.n_embd)),
    ]
    if model.pooling == "rank":
        outer.append(("cls.output.weight", (2, model.n_embd)))  # qwen3: the labels "yes" and "no"
    layers = [_layer(model, heads_kv) for heads_kv in model.heads_kv]
    return outer + _layers(layers + [_nextn(model)] * model.n_nextn)


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...], depth: float = 1.0) -> Array:
    """Return random weights whose scale suits the tensor. ``depth``: as in `TinyModel`."""
    if name.endswith("nextn.eh_proj.weight"):  # passes the token's embedding on, ignores the hidden state
        return np.eye(*shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith("norm.bias"):
        return np.zeros(shape, np.float32)
    if name.endswith("ssm_a"):
        return -np.abs(rng.standard_normal(shape, np.float32))
    # large enough that the next token depends on the earlier ones, small enough to stay finite
    is_residual = any(part in name for part in ("attn_output", "ffn_down", "ssm_out"))
    scale = 1.5 * depth if is_residual else 1.5
    return rng.standard_normal(shape, np.float32) * np.float32(scale / np.sqrt(shape[-1]))


def _layers(layers: list[Shapes]) -> Shapes:
    return [(f"blk.{i}.{name}", shape) for i, layer in enumerate(layers) for name, shape in layer]


def _layer(model: TinyModel, heads_kv: int) -> Shapes:
    norm: Shapes = [("attn_norm.weight", (model.n_embd,))]
    if model.arch == "mamba":
        return norm + _mamba(model)
    if model.arch == "jamba" and not heads_kv:
        return norm + _mamba(model) + _mamba_norms(model) + _feed_forward(model)
    forward = [("post_attention_norm.weight", (model.n_embd,)), *_feed_forward(model)[1:]]
    if model.arch == "glm4moe":
        return norm + _attention(model, heads_kv) + forward
    if model.arch == "qwen35":
        return norm + (_gated_attention(model) if heads_kv else _delta_net(model)) + forward
    return norm + _attention(model, heads_kv) + _feed_forward(model) + _further_norms(model)


def _nextn(model: TinyModel) -> Shapes:
    """Return an MTP head. Qwen 3.5's is an attention layer; GLM 4.5's has experts, one of them shared."""
    n_embd, n_ff, n_expert = model.n_embd, model.n_ff, NEXTN_EXPERTS
    own: Shapes = [(f"nextn.{name}.weight", (n_embd,)) for name in ("enorm", "hnorm", "shared_head_norm")]
    if model.arch == "qwen35":
        return [*_layer(model, model.n_head_kv), *own, ("nextn.eh_proj.weight", (n_embd, 2 * n_embd))]
    shapes: Shapes = [(f"{name}.weight", (n_embd,)) for name in ("attn_norm", "post_attention_norm")] + own
    shapes += _attention(model, model.n_head_kv)
    shapes += [("ffn_gate_inp.weight", (n_expert, n_embd)), ("exp_probs_b.bias", (n_expert,))]
    for name, experts in (("exps", (n_expert,)), ("shexp", ())):
        shapes += [(f"ffn_{part}_{name}.weight", (*experts, n_ff, n_embd)) for part in ("gate", "up")]
        shapes.append((f"ffn_down_{name}.weight", (*experts, n_embd, n_ff)))
    return [*shapes, ("nextn.eh_proj.weight", (n_embd, 2 * n_embd))]


def _attention(model: TinyModel, heads_kv: int) -> Shapes:
    n_embd, n_kv = model.n_embd, heads_kv * model.head_size
    return [
        ("attn_q.weight", (n_embd, n_embd)),
        ("attn_k.weight", (n_kv, n_embd)),
        ("attn_v.weight", (n_kv, n_embd)),
        ("attn_output.weight", (n_embd, n_embd)),
    ]


def _gated_attention(model: TinyModel) -> Shapes:
    """Qwen 3.5: each head has a query and a gate."""
    (_, query), *others = _attention(model, model.n_head_kv)
    heads: Shapes = [(f"attn_{part}_norm.weight", (model.head_size,)) for part in "qk"]
    return [("attn_q.weight", (2 * query[0], query[1])), *others, *heads]


def _delta_net(model: TinyModel) -> Shapes:
    n_embd, n_heads = model.n_embd, model.n_embd // SSM_STATE
    n_qkv = 2 * DELTA_GROUPS * SSM_STATE + n_embd
    return [
        ("attn_qkv.weight", (n_qkv, n_embd)),
        ("attn_gate.weight", (n_embd, n_embd)),
        ("ssm_conv1d.weight", (n_qkv, SSM_CONV)),
        ("ssm_dt.bias", (n_heads,)),
        ("ssm_a", (n_heads,)),
        ("ssm_beta.weight", (n_heads, n_embd)),
        ("ssm_alpha.weight", (n_heads, n_embd)),
        ("ssm_norm.weight", (SSM_STATE,)),
        ("ssm_out.weight", (n_embd, n_embd)),
    ]


def _feed_forward(model: TinyModel) -> Shapes:
    n_embd, n_ff, n_expert = model.n_embd, model.n_ff, model.n_expert
    norm: Shapes = [("ffn_norm.weight", (n_embd,))]
    matrices: dict[str, tuple[int, ...]] = {"gate": (n_ff, n_embd), "up": (n_ff, n_embd), "down": (n_embd, n_ff)}
    if not n_expert:
        return norm + [(f"ffn_{name}.weight", shape) for name, shape in matrices.items()]
    experts: Shapes = [(f"ffn_{name}_exps.weight", (n_expert, *shape)) for name, shape in matrices.items()]
    return [*norm, ("ffn_gate_inp.weight", (n_expert, n_embd)), *experts]


def _further_norms(model: TinyModel) -> Shapes:
    heads: Shapes = [("attn_q_norm.weight", (model.head_size,)), ("attn_k_norm.weight", (model.head_size,))]
    if model.arch == "qwen3":
        return heads
    if model.arch == "gemma3":
        return [("post_attention_norm.weight", (model.n_embd,)), ("post_ffw_norm.weight", (model.n_embd,)), *heads]
    return []


def _mamba(model: TinyModel) -> Shapes:
    n_embd, inner, rank = model.n_embd, 2 * model.n_embd, model.n_embd // 16
    return [
        ("ssm_in.weight", (2 * inner, n_embd)),
        ("ssm_conv1d.weight", (inner, SSM_CONV)),
        ("ssm_conv1d.bias", (inner,)),
        ("ssm_x.weight", (rank + 2 * SSM_STATE, inner)),
        ("ssm_dt.weight", (inner, rank)),
        ("ssm_dt.bias", (inner,)),
        ("ssm_a", (inner, SSM_STATE)),
        ("ssm_d", (inner,)),
        ("ssm_out.weight", (n_embd, inner)),
    ]


def _mamba_norms(model: TinyModel) -> Shapes:
    return [
        ("ssm_dt_norm.weight", (model.n_embd // 16,)),
        ("ssm_b_norm.weight", (SSM_STATE,)),
        ("ssm_c_norm.weight", (SSM_STATE,)),
    ]


def _t5(model: TinyModel) -> Shapes:
    """Return an encoder, and for ``t5`` also a decoder with cross-attention."""
    n_embd, n_ff = model.n_embd, model.n_ff
    feed: Shapes = [
        ("ffn_norm.weight", (n_embd,)),
        ("ffn_up.weight", (n_ff, n_embd)),
        ("ffn_down.weight", (n_embd, n_ff)),
    ]

    def attention(name: str) -> Shapes:
        return [
            (f"{name}_norm.weight", (n_embd,)),
            *((f"{name}_{part}.weight", (n_embd, n_embd)) for part in "qkvo"),
            (f"{name}_rel_b.weight", (T5_BUCKETS, model.n_head)),
        ]

    parts = {"enc": attention("attn") + feed}
    if model.arch == "t5":
        parts["dec"] = attention("attn") + attention("cross_attn") + feed
    return [
        ("token_embd.weight", (model.n_vocab, n_embd)),
        *((f"{part}.output_norm.weight", (n_embd,)) for part in parts),
        *(
            (f"{part}.{name}", shape)
            for part, layers in parts.items()
            for name, shape in _layers([layers] * model.n_layer)
        ),
    ]


def _bert_outer(model: TinyModel) -> Shapes:
    n_embd = model.n_embd
    outer: Shapes = [
        ("token_embd.weight", (model.n_vocab, n_embd)),
        ("token_types.weight", (2, n_embd)),
        ("position_embd.weight", (model.n_ctx, n_embd)),
        ("token_embd_norm.weight", (n_embd,)),
        ("token_embd_norm.bias", (n_embd,)),
    ]
    if model.pooling == "rank":
        outer += [("cls.weight", (n_embd, n_embd)), ("cls.bias", (n_embd,))]
        outer += [("cls.output.weight", (1, n_embd)), ("cls.output.bias", (1,))]
    return outer


def _bert_layer(model: TinyModel) -> Shapes:
    n_embd, n_ff = model.n_embd, model.n_ff
    matrices = {
        "attn_q": (n_embd, n_embd),
        "attn_k": (n_embd, n_embd),
        "attn_v": (n_embd, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    layer: Shapes = []
    for name, shape in matrices.items():
        layer += [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]
    for name in ("attn_output_norm", "layer_output_norm"):
        layer += [(f"{name}.weight", (n_embd,)), (f"{name}.bias", (n_embd,))]
    return layer
