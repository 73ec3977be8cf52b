"""Describes a model from its file's header, without loading it."""

import math

from server.errors import ModelFailed
from server.llama.files.chat_templates import built_in_template
from server.llama.files.gguf_header import BLOCKS, GgufHeader, Scalar
from server.llama.files.model_file import check_files, read_gguf
from server.llama.files.roles import roles
from server.llama.library import C
from server.media.bitmap import BitmapKind
from server.pool.protocols import ModelInfo
from server.pool.spec import ModelSpec

_TEMPLATE = "tokenizer.chat_template"


def describe(spec: ModelSpec) -> ModelInfo:
    """Return the same as `Weights.info`, except what only the library knows (vocabulary, fingerprints). Raises
    `ModelFailed`.
    """
    files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
    header = files.header
    what = roles(header, spec.native)
    architecture = header.metadata["general.architecture"]
    tensors = [tensor for _, part in files.parts for tensor in part.tensors]
    template = _text(header, _TEMPLATE)
    return ModelInfo(
        ftype=(C.llama_ftype_name(header.integer("general.file_type")) or b"").decode(),
        n_vocab=header.lengths.get("tokenizer.ggml.tokens", 0),
        n_ctx_train=header.integer(f"{architecture}.context_length"),
        n_embd=header.integer(f"{architecture}.embedding_length"),
        n_params=sum(math.prod(tensor.shape) for tensor in tensors),
        size=sum(math.prod(t.shape) // BLOCKS[t.type][0] * BLOCKS[t.type][1] for t in tensors if t.type in BLOCKS),
        chat_template=template,
        chat_template_tool_use=_text(header, f"{_TEMPLATE}.tool_use"),
        built_in_template=built_in_template(spec.chat.template or template),
        metadata={key: _printed(value) for key, value in header.metadata.items() if not isinstance(value, tuple)},
        generates=what.generates,
        embeds=what.embeds,
        media=media_kinds(spec),
    )


def media_kinds(spec: ModelSpec) -> frozenset[BitmapKind]:
    """Return the media that the projector supports (mtmd_get_cap_from_file); none without a projector."""
    if spec.mmproj is None:
        return frozenset()
    try:
        metadata = read_gguf(spec.id, spec.mmproj).metadata
    except ModelFailed:
        return frozenset()
    kinds: dict[BitmapKind, str] = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
    return frozenset(kind for kind, key in kinds.items() if metadata.get(key) is True)


def _text(header: GgufHeader, key: str) -> str:
    value = header.metadata.get(key, "")
    return value if isinstance(value, str) else ""


def _printed(value: Scalar) -> str:
    """As the library prints scalars."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)
