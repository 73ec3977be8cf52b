"""`gguf_file`: write the file of a `TinyModel`, once per folder and options."""

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, PoolingType

from tests.support.ggufs.model import PLAIN, TinyModel
from tests.support.ggufs.tensors import (
    DELTA_GROUPS,
    EXPERTS_USED,
    NEXTN_EXPERTS,
    SSM_CONV,
    SSM_STATE,
    T5_BUCKETS,
    tensors,
    weights,
)
from tests.support.ggufs.vocabulary import write_vocabulary

RECURRENT = ("mamba", "jamba")


def gguf_file(folder: Path, model: TinyModel = PLAIN) -> Path:
    """Return the path of the file for `model`, which is written on the first call."""
    digest = hashlib.sha256(repr(model).encode() + _sources()).hexdigest()[:12]
    path = folder / f"tiny-{model.arch}-{digest}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _write(part, model)
        part.rename(path)
    return path


@cache
def _sources() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))


def _write(path: Path, model: TinyModel) -> None:
    writer = GGUFWriter(path, model.arch)
    _write_hyperparameters(writer, model)
    write_vocabulary(writer, model)
    _write_templates(writer, model)
    rng = np.random.default_rng(model.seed)
    for name, shape in tensors(model):
        array = weights(rng, name, shape, model.depth)
        if model.nan_weights and name == "output.weight":
            array[:] = np.nan
        half = model.ftype == "F16" and len(shape) > 1
        writer.add_tensor(name, array.astype(np.float16) if half else array)
    finish(writer)


def _write_hyperparameters(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_name(f"tiny {model.arch}")
    writer.add_file_type(LlamaFileType.ALL_F32 if model.ftype == "F32" else LlamaFileType.MOSTLY_F16)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_block_count(model.n_layer + model.n_nextn)
    writer.add_feed_forward_length(0 if model.arch == "mamba" else model.n_ff)
    if model.arch in RECURRENT:
        _write_state_space(writer, model)
    if model.arch == "mamba":
        writer.add_head_count(0)
    else:
        _write_attention(writer, model)
    if model.arch == "bert":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    if model.arch == "bert" or not model.causal:
        writer.add_causal_attention(False)
    if model.arch == "glm4moe":
        _write_glm(writer, model)
    if model.arch == "qwen35":
        _write_delta_net(writer, model)
    if model.n_nextn:
        writer.add_nextn_predict_layers(model.n_nextn)
    if model.n_expert:
        writer.add_expert_count(model.n_expert)
        writer.add_expert_used_count(EXPERTS_USED)
    if model.pooling is not None:
        writer.add_pooling_type(PoolingType[model.pooling.upper()])


def _write_glm(writer: GGUFWriter, model: TinyModel) -> None:
    """GLM 4.5: dense layers, MTP heads with experts."""
    writer.add_expert_count(NEXTN_EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(model.n_ff)
    writer.add_leading_dense_block_count(model.n_layer)


def _write_delta_net(writer: GGUFWriter, model: TinyModel) -> None:
    """Qwen 3.5: every second layer has attention, the others are gated delta nets."""
    writer.add_full_attention_interval(2)
    writer.add_ssm_conv_kernel(SSM_CONV)
    writer.add_ssm_inner_size(model.n_embd)
    writer.add_ssm_state_size(SSM_STATE)
    writer.add_ssm_time_step_rank(model.n_embd // SSM_STATE)
    writer.add_ssm_group_count(DELTA_GROUPS)


def _write_state_space(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_ssm_conv_kernel(SSM_CONV)
    writer.add_ssm_inner_size(2 * model.n_embd)
    writer.add_ssm_state_size(SSM_STATE)
    writer.add_ssm_time_step_rank(model.n_embd // 16)


def _write_attention(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_head_count(model.n_head)
    if model.arch == "bert":
        return
    writer.add_head_count_kv(model.heads_kv if model.arch == "jamba" else model.n_head_kv)
    writer.add_key_length(model.head_size)
    writer.add_value_length(model.head_size)
    writer.add_rope_dimension_count(model.head_size)
    writer.add_rope_freq_base(10000.0)
    if model.arch in ("qwen2vl", "qwen35"):  # M-RoPE: dimensions of a head for time, height and width
        n = model.head_size // 8
        writer.add_rope_dimension_sections([2 * n, n, n, 0])
    if model.arch in ("t5", "t5encoder"):
        writer.add_uint32(f"{model.arch}.attention.relative_buckets_count", T5_BUCKETS)
    if model.arch == "gemma3":
        writer.add_sliding_window(model.n_swa)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", model.swa_pattern)
    if model.arch == "qwen3" and model.pooling == "rank":
        writer.add_classifier_output_labels(["yes", "no"])


def _write_templates(writer: GGUFWriter, model: TinyModel) -> None:
    kinds = {"rerank": model.rerank_template, "tool_use": model.tool_use_template, "default": model.chat_template}
    named = [{"name": name, "template": text} for name, text in kinds.items() if text is not None]
    if model.rerank_template is not None or model.tool_use_template is not None:
        writer.add_chat_template(named)
    elif model.chat_template is not None:
        writer.add_chat_template(model.chat_template)


def finish(writer: GGUFWriter) -> None:
    """Write header, metadata and tensors, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
