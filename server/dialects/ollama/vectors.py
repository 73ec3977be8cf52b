"""``POST /api/embed``, and the older ``/api/embeddings``, which has one text and returns its vector unnormalized."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import AfterValidator

from server.dialects.common import Json
from server.dialects.fields import INT32_MAX, Body, TextOrStrings, Whole, field_error, parse, within
from server.dialects.ollama.parse import KeepAlive, Options
from server.dialects.vectors import EUCLIDEAN, MAX_INPUTS, VectorJob, VectorRequest, check_dimensions, normalized
from server.dialects.warnings import known_fields, unused_fields
from server.engine.runner_api import Pooling, Vectors
from server.errors import invalid
from server.media.source import LoadedMedia
from server.pool.model import LoadedModel

EmbedOptions = Annotated[dict[str, Any] | None, known_fields(Options)]


class EmbedBody(Body):
    """The body of ``POST /api/embed``."""

    model: str | None = None
    input: TextOrStrings = None
    truncate: bool | None = None
    dimensions: Annotated[Whole, AfterValidator(within(0, INT32_MAX))] | None = None
    keep_alive: KeepAlive | None = None
    options: EmbedOptions = None


class OldEmbedBody(Body):
    """The body of ``POST /api/embeddings``."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: KeepAlive | None = None
    options: EmbedOptions = None


def read_embed(given: dict[str, Any]) -> VectorRequest:
    started_at, body = time.perf_counter(), parse(EmbedBody, given)
    texts, dimensions = _texts(body.input), body.dimensions or 0

    def job(model: LoadedModel, _: LoadedMedia) -> VectorJob:
        loaded_at = time.perf_counter()
        check_dimensions(dimensions, model.embedder.info.n_embd)
        inputs = _inputs(texts, model, truncate=body.truncate is not False)

        def reply(found: Sequence[Vectors]) -> bytes:
            rows = [vectors[:, : dimensions or None] for vectors in found]
            return _serialized(
                {
                    "model": body.model or model.spec.id,
                    "embeddings": [np.ascontiguousarray(normalized(row, EUCLIDEAN)[0]) for row in rows],
                    "total_duration": int(1e9 * (time.perf_counter() - started_at)),
                    "load_duration": int(1e9 * (loaded_at - started_at)),
                    "prompt_eval_count": sum(map(len, inputs)),
                }
            )

        return VectorJob(inputs, reply)

    empty = b"" if texts else _serialized({"model": body.model or "", "embeddings": []})
    warnings = unused_fields(given, EmbedBody)
    return VectorRequest(body.model or None, job, warnings, keep_alive_s=body.keep_alive, empty=empty)


def read_old_embed(given: dict[str, Any]) -> VectorRequest:
    """Parse the body of ``/api/embeddings``. The text is not truncated, and the vector is not normalized."""
    body = parse(OldEmbedBody, given)
    text = body.prompt or ""

    def job(model: LoadedModel, _: LoadedMedia) -> VectorJob:
        inputs = _inputs([text], model, truncate=False)
        return VectorJob(inputs, lambda found: _serialized({"embedding": np.ascontiguousarray(found[0][0])}))

    empty = b"" if text else _serialized({"embedding": []})
    warnings = unused_fields(given, OldEmbedBody)
    return VectorRequest(body.model or None, job, warnings, keep_alive_s=body.keep_alive, empty=empty)


def _serialized(reply: Json) -> bytes:
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _inputs(texts: Sequence[str], model: LoadedModel, *, truncate: bool) -> list[list[int]]:
    """Return the tokens of each text. Raises `InvalidRequest` for a model without pooling."""
    info = model.embedder.info
    if info.pooling is Pooling.NONE:
        reason = "the model's pooling type is none, which returns one vector per token; choose another pooling type"
        raise invalid("input", reason)
    longest = info.longest if truncate else None
    return [_tokens(text, model, longest) for text in texts]


def _tokens(text: str, model: LoadedModel, longest: int | None) -> list[int]:
    """Return the tokens of a text, truncated to `longest`. The end token, if the vocabulary adds one, stays."""
    vocab = model.vocab
    tokens = vocab.tokenize(text, add_special=True, parse_special=True)
    if longest is None or len(tokens) <= longest:
        return tokens
    end = tokens[-1:] if vocab.add_eos or vocab.add_sep else []
    return tokens[: longest - len(end)] + end


def _texts(value: object) -> list[str]:
    """Return the texts of ``input``. A single empty text counts as none, as in Ollama."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise invalid("input", "invalid input type; it must be a string or a list of strings")
    if len(value) > MAX_INPUTS:
        raise field_error("input", f"has {len(value)} texts, at most {MAX_INPUTS} are possible")
    return value
