"""Replies of the other endpoints. ``raw`` is the JSON of a reply, with fields that these classes lack."""

import base64
import binascii
import struct
from dataclasses import dataclass, field
from typing import Any, Self

from llamapool.client.completion_replies import Raw, Usage
from llamapool.client.errors import ApiError, UnexpectedReply
from llamapool.client.transport import as_object, as_objects, required

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class EmbeddingData:
    """The embedding of a text, decoded if ``encoding_format`` is "base64"."""

    index: int
    embedding: list[float]
    object: str = "embedding"

    @classmethod
    def from_reply(cls, entry: Raw, position: int) -> Self:
        """Parse one element of ``data``. Raises `UnexpectedReply`."""
        vector = entry.get("embedding")
        if isinstance(vector, str):
            vector = _floats(vector)
        if not isinstance(vector, list):
            raise UnexpectedReply("an embedding is neither an array nor base64", entry)
        return cls(int(entry.get("index", position)), vector, str(entry.get("object") or "embedding"))


@dataclass(frozen=True, slots=True)
class EmbeddingsResponse:
    """``/v1/embeddings``."""

    object: str
    data: list[EmbeddingData]
    model: str
    usage: Usage | None = None
    raw: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_reply(cls, reply: Raw) -> Self:
        """Parse the reply. Raises `UnexpectedReply`."""
        return cls(
            object=str(reply.get("object") or "list"),
            data=[EmbeddingData.from_reply(entry, i) for i, entry in enumerate(as_objects(reply.get("data")))],
            model=str(reply.get("model") or ""),
            usage=Usage.of_reply(reply),
            raw=reply,
        )


@dataclass(frozen=True, slots=True)
class RerankResult:
    """The score of a document. ``document``: its text; ``index``: its number in the request."""

    index: int
    relevance_score: float
    document: str | None = None


@dataclass(frozen=True, slots=True)
class RerankResponse:
    """``/v1/rerank``, best document first."""

    model: str
    results: list[RerankResult]
    usage: Usage | None = None
    raw: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_reply(cls, reply: Raw, documents: list[str]) -> Self:
        """Parse the reply for `documents`. Raises `UnexpectedReply`."""
        results = []
        for entry in as_objects(reply.get("results")):
            index = int(required(entry, "index"))
            document = documents[index] if 0 <= index < len(documents) else None
            results.append(RerankResult(index, float(required(entry, "relevance_score")), document))
        return cls(
            model=str(reply.get("model") or ""),
            results=results,
            usage=Usage.of_reply(reply),
            raw=reply,
        )


@dataclass(frozen=True, slots=True)
class TokenizeResponse:
    """``tokens`` is a list of ids or, with ``with_pieces``, of ``{"id", "piece"}`` from the server."""

    tokens: list[Any]

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens, with and without pieces."""
        return [entry["id"] if isinstance(entry, dict) else entry for entry in self.tokens]

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of the tokens (the server sends a part of a character as numbers); [] without pieces."""
        pieces = [entry["piece"] for entry in self.tokens if isinstance(entry, dict)]
        return [piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """``status`` is "ok", "loading" or "error". The numbers of slots are None if the server omits them."""

    status: str
    slots_idle: int | None = None
    slots_processing: int | None = None
    raw: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_reply(cls, reply: Raw) -> Self:
        """Parse a reply with status 200."""
        return cls(str(reply.get("status") or "ok"), reply.get("slots_idle"), reply.get("slots_processing"), reply)

    @classmethod
    def from_error(cls, error: ApiError) -> Self:
        """Parse an error. 503 "Loading model", or ``{"status": "loading model"}`` before 2024, is "loading"."""
        body = error.body if isinstance(error.body, dict) else {}
        loading = f"{body.get('status') or error.message}".lower().startswith("loading")
        status = "loading" if loading and error.status == 503 else "error"
        return cls(status, body.get("slots_idle"), body.get("slots_processing"), error.body)


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot. ``prompt`` is None unless the server shows prompts; ``n_predict`` is -1 without a limit."""

    id: int
    is_processing: bool
    n_ctx: int = 0
    n_predict: int = -1
    params: Raw = field(default_factory=dict)
    prompt: str | None = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_reply(cls, slot: Raw) -> Self:
        """Parse one element of ``/slots``. A slot without a request lacks most fields. Raises `UnexpectedReply`."""
        params = slot.get("params") or {}
        return cls(
            id=int(required(slot, "id")),
            is_processing=bool(slot.get("is_processing", slot.get("state", 0))),  # a number before 2025
            n_ctx=int(slot.get("n_ctx") or 0),
            n_predict=int(slot.get("n_predict", params.get("n_predict", -1))),
            params=params,
            prompt=slot.get("prompt"),
            raw=slot,
        )


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A loaded adapter."""

    id: int
    path: str
    scale: float
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_reply(cls, adapter: Raw) -> Self:
        """Parse one element of ``/lora-adapters``. Raises `UnexpectedReply`."""
        identity, scale = required(adapter, "id"), required(adapter, "scale")
        return cls(int(identity), str(adapter.get("path") or ""), float(scale), adapter)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """An entry of ``/v1/models``. ``meta`` and ``status`` are None if the server omits them."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = ""
    meta: Raw | None = None
    status: Any = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_reply(cls, model: Raw) -> Self:
        """Parse one element of ``data``. Raises `UnexpectedReply`."""
        return cls(
            id=str(required(model, "id")),
            object=str(model.get("object") or "model"),
            created=int(model.get("created") or 0),
            owned_by=str(model.get("owned_by") or ""),
            meta=model.get("meta"),
            status=model.get("status"),
            raw=model,
        )


def vectors(reply: Any) -> list[list[float]]:
    """Return the embeddings of ``/embedding`` in the order of the texts: one per text or, without pooling, per token.

    Supports ``[{"index", "embedding": [[...], ...]}, ...]`` and the format of llama-server before 2025: one object with
    a single vector in ``embedding``. Raises `UnexpectedReply`.
    """
    entries = [as_object(reply)] if isinstance(reply, dict) else as_objects(reply)
    found: list[list[float]] = []
    for entry in sorted(entries, key=lambda entry: int(entry.get("index") or 0)):
        embedding = entry.get("embedding")
        if not isinstance(embedding, list) or not embedding:
            raise UnexpectedReply("an entry has no embedding", entry)
        found += embedding if isinstance(embedding[0], list) else [embedding]
    return found


def _floats(encoded: str) -> list[float]:
    """Decode base64 of little-endian 32-bit floats. Raises `UnexpectedReply`."""
    try:
        packed = base64.b64decode(encoded, validate=True)
        return list(struct.unpack(f"<{len(packed) // _FLOAT_BYTES}f", packed))
    except (binascii.Error, struct.error) as error:
        raise UnexpectedReply(f"an embedding is not base64 of 32-bit floats: {error}", encoded) from error
