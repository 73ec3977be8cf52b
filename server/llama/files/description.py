"""`describe`: the facts of a model from the header of its file, without a load."""

import ctypes
import math

from server.errors import ModelFailed
from server.llama.files.gguf_header import Scalar
from server.llama.files.model_file import ModelFiles, read_gguf
from server.llama.files.roles import embeds, generates
from server.llama.library import C
from server.media.bitmap import BitmapKind
from server.pool.protocols import ModelInfo
from server.pool.spec import ModelSpec
from server.templates.built_in import names

_CHAT = (  # all templates render it differently, except those that render every chat the same
    ("system", " s\n"),
    ("user", " a\n"),
    ("assistant", " b\n"),
    ("user", " c\n"),
    ("system", "d"),
    ("assistant_tool_call", "e"),
    ("tool", "f"),
)
_SIZE = 4096  # bytes; every template renders `_CHAT` to less


def built_in_template(source: str) -> str:
    """Return the name of the built-in template that llama.cpp uses for `source`; "" if it uses none.

    The library detects templates by markers in the source (src/llama-chat.cpp, llm_chat_detect_template) but does not
    report the result, so rendered chats are compared. An empty source is ChatML, as for a model without a template.
    """
    rendered = _rendered(source or "chatml")
    if rendered is None:
        return ""
    return next((name for name in names() if _rendered(name) == rendered), "")


def _rendered(source: str) -> bytes | None:
    """Return `_CHAT` as the library renders it with a template's source or name; None if it detects no template."""
    chat = (C.llama_chat_message * len(_CHAT))()
    for message, (role, content) in zip(chat, _CHAT, strict=True):
        message.role, message.content = role.encode(), content.encode()
    text = ctypes.create_string_buffer(_SIZE)
    n = C.llama_chat_apply_template(source.encode().replace(b"\0", b""), chat, len(_CHAT), True, text, _SIZE)
    return None if n < 0 else text.raw[: min(n, _SIZE)]


_TEMPLATE = "tokenizer.chat_template"


def describe(spec: ModelSpec, files: ModelFiles, default_template: str = "") -> ModelInfo:
    """Return `Weights.info` without the fields that need a load (vocabulary, fingerprints). `default_template`: for a
    file without a chat template.
    """
    header = files.header
    template = header.text(_TEMPLATE) or default_template
    return ModelInfo(
        ftype=(C.llama_ftype_name(header.integer("general.file_type")) or b"").decode(),
        n_vocab=header.lengths.get("tokenizer.ggml.tokens", 0),
        n_ctx_train=header.of_model("context_length"),
        n_embd=header.of_model("embedding_length"),
        n_params=sum(math.prod(tensor.shape) for tensor in files.tensors),
        size=sum(tensor.n_bytes for tensor in files.tensors),
        chat_template=template,
        chat_template_tool_use=header.text(f"{_TEMPLATE}.tool_use"),
        built_in_template=built_in_template(spec.chat.template or template),
        metadata={key: _formatted(value) for key, value in header.metadata.items() if not isinstance(value, tuple)},
        generates=generates(header, spec.native),
        embeds=embeds(header, spec.native),
        media=media_kinds(spec),
        rerank_template=header.text(f"{_TEMPLATE}.rerank"),
    )


def media_kinds(spec: ModelSpec) -> frozenset[BitmapKind]:
    """Return the kinds of media that the projector supports (mtmd_get_cap_from_file); empty without a projector."""
    if spec.mmproj is None:
        return frozenset()
    try:
        metadata = read_gguf(spec.id, spec.mmproj).metadata
    except ModelFailed:
        return frozenset()
    kinds: dict[BitmapKind, str] = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
    return frozenset(kind for kind, key in kinds.items() if metadata.get(key) is True)


def _formatted(value: Scalar) -> str:
    """Format a scalar like the library."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)
