"""``POST /api/embed``, and ``/api/embeddings``, which was before it: one text and its vector as the model gives it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import AfterValidator

from server.dialects.fields import INT32_MAX, Body, TextOrStrings, Whole, field_error, parse, within
from server.dialects.ollama.parse import KeepAlive, unused_options
from server.dialects.vectors import EUCLIDEAN, MAX_INPUTS, VectorJob, check_dimensions, normalized
from server.engine.runner_api import Pooling, Vectors
from server.errors import InvalidRequest
from server.pool.model import LoadedModel


class EmbedBody(Body):
    """The body of ``POST /api/embed``."""

    model: str | None = None
    input: TextOrStrings = None
    truncate: bool | None = None
    dimensions: Annotated[Whole, AfterValidator(within(0, INT32_MAX))] | None = None
    keep_alive: KeepAlive | None = None
    options: dict[str, Any] | None = None


class OldEmbedBody(Body):
    """The body of ``POST /api/embeddings``."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: KeepAlive | None = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """A checked body of either. ``texts`` may be none: then the model is loaded and that is all."""

    model: str | None
    texts: list[str]
    keep_alive_s: float | None
    began: float  # seconds of `time.perf_counter`
    warnings: Sequence[str]
    truncate: bool = False
    dimensions: int = 0
    old: bool = False

    @property
    def empty(self) -> bytes:
        """Return the response for an empty input."""
        return orjson.dumps({"embedding": []} if self.old else {"model": self.model or "", "embeddings": []})


def read_embed(given: dict[str, Any]) -> Embed:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    began, body = time.perf_counter(), parse(EmbedBody, given)
    return Embed(
        body.model or None,
        _texts(body.input),
        body.keep_alive,
        truncate=body.truncate is not False,
        dimensions=body.dimensions or 0,
        began=began,
        warnings=unused_options(given, EmbedBody),
    )


def read_old_embed(given: dict[str, Any]) -> Embed:
    """Parse the older body like `read_embed`; its text is never truncated."""
    began, body = time.perf_counter(), parse(OldEmbedBody, given)
    texts, warnings = [body.prompt] if body.prompt else [], unused_options(given, OldEmbedBody)
    return Embed(body.model or None, texts, body.keep_alive, began=began, warnings=warnings, old=True)


def embed_job(request: Embed, model: LoadedModel) -> VectorJob:
    """Tokenize; blocking, for a thread. Raises `InvalidRequest`."""
    loaded, info = time.perf_counter(), model.embedder.info
    if info.pooling is Pooling.NONE:
        reason = "the model's pooling type is none, which returns one vector per token; choose another pooling type"
        raise InvalidRequest(f"input: {reason}", "input")
    check_dimensions(request.dimensions, info.n_embd)
    longest = info.longest if request.truncate else None
    inputs = [_tokens(text, model, longest) for text in request.texts]

    def reply(found: Sequence[Vectors]) -> bytes:
        if request.old:  # whose vector has no length of one
            body: Any = {"embedding": np.ascontiguousarray(found[0][0])}
        else:
            rows = [vectors[:, : request.dimensions or None] for vectors in found]
            body = {
                "model": request.model or model.spec.id,
                "embeddings": [np.ascontiguousarray(normalized(row, EUCLIDEAN)[0]) for row in rows],
                "total_duration": int(1e9 * (time.perf_counter() - request.began)),
                "load_duration": int(1e9 * (loaded - request.began)),
                "prompt_eval_count": sum(map(len, inputs)),
            }
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    return VectorJob(inputs, reply)


def _tokens(text: str, model: LoadedModel, longest: int | None) -> list[int]:
    """Return the text's tokens; of more than `longest` the first, and the token that ends texts."""
    vocab = model.vocab
    tokens = vocab.tokenize(text, add_special=True, parse_special=True)
    if longest is None or len(tokens) <= longest:
        return tokens
    end = tokens[-1:] if vocab.add_eos or vocab.add_sep else []
    return tokens[: longest - len(end)] + end


def _texts(value: object) -> list[str]:
    """Return one text or a list of them; an empty text alone is none, as in Ollama."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidRequest("input: invalid input type; it must be a string or a list of strings", "input")
    if len(value) > MAX_INPUTS:
        raise field_error("input", f"has {len(value)} texts, at most {MAX_INPUTS} are possible")
    return value
