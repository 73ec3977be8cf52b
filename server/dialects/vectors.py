"""Embeddings and scores: ``/v1/embeddings``, llama-server's ``/embeddings``, and rerank endpoints.

Embeddings follow llama-server (tools/server/server-context.cpp, handle_embeddings_impl). In addition, ``dimensions``
is supported, and the number of inputs is limited. ``/rerank`` has Jina's format or, with ``texts``, that of Text
Embeddings Inference (TEI); ``/v2/rerank`` has Cohere's (post_rerank; server-common.cpp, format_prompt_rerank). In
addition, documents may be objects with ``text``; Jina's ``return_documents`` and TEI's ``raw_scores`` are supported.
"""

import base64
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import orjson
from pydantic import AfterValidator, Field

from server.chat.conversation import TextPart
from server.dialects.common import Json
from server.dialects.completions.prompt import FORMS, UntokenizedPrompt, prompt_media, read_mixed, read_object
from server.dialects.content import read_content
from server.dialects.fields import INT32_MAX, Body, Count, Prompt, Whole, field_error, parse, within
from server.dialects.warnings import Omitted, known_fields, unused_fields
from server.engine.media import MediaPrompt
from server.engine.runner_api import Pooling, Vectors
from server.errors import InvalidRequest
from server.media.source import LoadedMedia, Media
from server.pool.model import LoadedModel, cannot_rerank
from server.pool.spec import Task
from server.vocab import Vocab

NONE, MAX_ABSOLUTE, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
MAX_NORM = 1000
MAX_INPUTS = 2048
"""Maximum number of texts in a request; OpenAI's limit."""
_INT16_RANGE = 32760.0
_PLACEHOLDER = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True, slots=True)
class VectorJob:
    """The inputs to compute. ``reply`` returns the JSON of the reply for their vectors; blocking, for a thread."""

    inputs: Sequence[Sequence[int] | MediaPrompt]
    reply: Callable[[Sequence[Vectors]], bytes]


@dataclass(frozen=True, slots=True)
class VectorRequest:
    """A parsed body of an endpoint that computes vectors."""

    model: str | None
    job: Callable[[LoadedModel, LoadedMedia], VectorJob]
    """Tokenizes the inputs for a model. Blocking. Raises `InvalidRequest` and `NotSupported`."""
    warnings: Sequence[str]
    task: Task = "embed"
    media: Sequence[Media] = ()
    keep_alive_s: float | None = None
    empty: bytes = b""  # if there is no text: the reply after the model was loaded


def normalized(vectors: Vectors, norm: int) -> Vectors:
    """Return each row normalized to length 1 (llama.cpp common/common.cpp, common_embd_normalize).

    `norm`: -1 none, 0 the largest absolute component becomes 32760, 1 taxicab, 2 Euclidean, p the p-norm. Rows of zeros
    stay unchanged.
    """
    if norm == NONE:
        return vectors
    rows = vectors.astype(np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if norm == MAX_ABSOLUTE:
        length = largest / _INT16_RANGE
    else:  # divided by the largest value first, because its power could overflow
        parts = np.abs(np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0))
        length = largest * (parts**norm).sum(axis=1, keepdims=True) ** (1.0 / norm)
    result: Vectors = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0).astype(np.float32)
    return result


class EmbeddingsBody(Body):
    """The body of every embeddings endpoint."""

    model: str | None = None
    input: Prompt = None
    content: Prompt = None
    encoding_format: Literal["float", "base64"] | None = None
    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "encoding_format": "The format to return the embeddings in. Can be either float or base64"
    }
    dimensions: Annotated[Whole, AfterValidator(within(1, INT32_MAX))] | None = None
    embd_normalize: Annotated[Whole, AfterValidator(within(-1, MAX_NORM))] | None = None


def read_embeddings(given: dict[str, Any], *, native: bool) -> VectorRequest:
    """Parse the body of an embeddings endpoint. `native`: llama-server's endpoint. Raises `InvalidRequest`.

    An input has one vector or, without pooling, one for each token. For ``content``, the reply also has llama-server's
    format.
    """
    body = parse(EmbeddingsBody, given)
    path, value = ("content", body.content) if body.input is None else ("input", body.input)
    if value is None:
        raise InvalidRequest('"input" or "content" must be provided', "input")
    prompts, is_native = _prompts(value, path), native or path == "content"

    def job(model: LoadedModel, media: LoadedMedia) -> VectorJob:
        info = model.embedder.info
        if not native and info.pooling is Pooling.NONE:
            raise InvalidRequest("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
        check_dimensions(body.dimensions or 0, info.n_embd)
        norm = model.spec.embd_normalize if body.embd_normalize is None else body.embd_normalize
        norm = NONE if info.pooling in (Pooling.NONE, Pooling.RANK) else norm
        inputs = [prompt.read(model, media) for prompt in prompts]
        if not all(prompt.tokens for prompt in inputs):
            raise InvalidRequest("Input content cannot be empty", "input")

        def reply(computed: Sequence[Vectors]) -> bytes:
            rows = [np.ascontiguousarray(normalized(vectors[:, : body.dimensions], norm)) for vectors in computed]
            if is_native:
                shown: Any = [{"index": i, "embedding": vectors} for i, vectors in enumerate(rows)]
            else:
                data = [_entry(i, vectors[0], body.encoding_format) for i, vectors in enumerate(rows)]
                shown = _listed(body.model or model.spec.id, sum(map(len, inputs)), data=data)
            return orjson.dumps(shown, option=orjson.OPT_SERIALIZE_NUMPY)

        return VectorJob(inputs, reply)

    return VectorRequest(body.model, job, unused_fields(given, EmbeddingsBody), media=prompt_media(prompts))


def check_dimensions(dimensions: int, n_embd: int) -> None:
    """Raise `InvalidRequest` for more dimensions than the model's vectors have."""
    if dimensions > n_embd:
        raise field_error("dimensions", f"the model's vectors have {n_embd} dimensions; {dimensions} were requested")


def _listed(model: str, n_tokens: int, **more: object) -> Json:
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"model": model, "object": "list", "usage": usage, **more}


def _entry(index: int, vector: Vectors, encoding: str | None) -> Json:
    shown = {"embedding": vector, "index": index, "object": "embedding"}
    if encoding != "base64":
        return shown
    floats = vector.astype("<f4").tobytes()
    return {**shown, "embedding": base64.b64encode(floats).decode("ascii"), "encoding_format": encoding}


def _prompts(value: object, path: str) -> list[UntokenizedPrompt]:
    """Return the prompts. A list that contains a number is a single prompt."""
    if not isinstance(value, list) or any(isinstance(entry, int | float) for entry in value):
        return [_prompt(value, path)]
    if not value:
        raise InvalidRequest('"input" must not be empty', path)
    _check_number(value, path)
    return [_prompt(entry, f"{path}.{index}") for index, entry in enumerate(value)]


def _check_number(texts: Sequence[object], path: str) -> None:
    if len(texts) > MAX_INPUTS:
        raise field_error(path, f"has {len(texts)} texts, at most {MAX_INPUTS} are possible")


def _prompt(value: object, path: str) -> UntokenizedPrompt:
    if isinstance(value, str | list):
        return read_mixed(value, path)
    if isinstance(value, dict) and "content" in value:
        return _content_text(value["content"], f"{path}.content")
    if isinstance(value, dict) and "prompt_string" in value:
        return read_object(value, path)
    raise InvalidRequest(FORMS, path)


def _content_text(parts: object, path: str) -> UntokenizedPrompt:
    """Return a prompt of content parts, without separators (server-common.cpp, tokenize_oai_content_array)."""
    if not isinstance(parts, list):
        raise InvalidRequest('"content" must be an array', path)
    omitted = Omitted()
    texts_and_media = [part.text if isinstance(part, TextPart) else part for part in read_content(parts, path, omitted)]
    if omitted:
        raise field_error(path, "unsupported content[].type")
    media = tuple(part for part in texts_and_media if isinstance(part, Media))
    text = "".join(part for part in texts_and_media if isinstance(part, str))
    return UntokenizedPrompt(text, path, media, lambda _: texts_and_media)


class Document(Body):
    """A document as an object."""

    text: str


Documents = Annotated[list[str | Document], Field(min_length=1)]

_DOCUMENTS_ERROR = '"documents" must be a non-empty string array'


class RerankBody(Body):
    """The body of every rerank endpoint."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "query?": '"query" must be provided',
        "query": '"query" must be a string',
        **dict.fromkeys(
            ("documents", "documents.*", "documents.*.text", "texts", "texts.*", "texts.*.text"), _DOCUMENTS_ERROR
        ),
    }
    model: str | None = None
    query: str
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None


_COHERE_FIELDS = known_fields(RerankBody).names - {"texts", "return_text", "raw_scores"}


def read_rerank(given: dict[str, Any], *, cohere: bool = False) -> VectorRequest:
    """Parse the body of a rerank endpoint. `cohere`: Cohere's endpoint. Raises `InvalidRequest`.

    The job raises `NotSupported` for a model that is no reranker. The reply has the documents sorted by score, the
    output of the model's head for the first class. Cohere's scores are between 0 and 1.
    """
    body = parse(RerankBody, given)
    uses_texts = body.documents is None and body.texts is not None and not cohere
    documents = body.texts if uses_texts else body.documents
    if documents is None:
        raise InvalidRequest(_DOCUMENTS_ERROR, "documents")
    _check_number(documents, "texts" if uses_texts else "documents")
    texts = [each.text if isinstance(each, Document) else each for each in documents]
    reply_format = "cohere" if cohere else "jina" if body.texts is None else "tei"

    def job(model: LoadedModel, _: LoadedMedia) -> VectorJob:
        if model.embedder.info.pooling is not Pooling.RANK:
            raise cannot_rerank(model.spec.id)
        inputs: list[list[int]] = []
        for pair in _pairs(body.query, texts, model.info.rerank_template, model.vocab):
            inputs.append(pair)
            if len(pair) > model.embedder.info.longest:  # the engine rejects it; a long query would repeat in each pair
                break

        def reply(computed: Sequence[Vectors]) -> bytes:
            as_probability = body.raw_scores is False or reply_format == "cohere"
            scores = [_probability(vectors) if as_probability else float(vectors[0, 0]) for vectors in computed]
            best = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
            if reply_format == "tei":
                shown: list[Json] = [{"text": text} if body.return_text else {} for text in texts]
                return orjson.dumps([{"index": i, "score": scores[i], **shown[i]} for i in best])
            shown = [{"document": {"text": text}} if body.return_documents else {} for text in texts]
            results = [{"index": i, "relevance_score": scores[i], **shown[i]} for i in best]
            n_tokens = sum(map(len, inputs))
            if reply_format == "jina":
                return orjson.dumps(_listed(body.model or model.spec.id, n_tokens, results=results))
            billed = {"search_units": 1}
            meta = {"api_version": {"version": "2"}, "billed_units": billed, "tokens": {"input_tokens": n_tokens}}
            return orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})

        return VectorJob(inputs, reply)

    return VectorRequest(body.model, job, unused_fields(given, _COHERE_FIELDS if cohere else RerankBody), "rerank")


def _pairs(query: str, documents: Sequence[str], template: str, vocab: Vocab) -> Iterator[list[int]]:
    """Yield the tokens of the prompt for each document: the model's template with its placeholders replaced.

    Without a template: ``[BOS]query[EOS][SEP]document[EOS]``, with those tokens that the vocabulary adds, and with SEP
    if there is no EOS.
    """
    if template:
        # Placeholders in the texts are not replaced.
        parts = _PLACEHOLDER.split(template)
        for text in documents:
            values = {"query": query, "document": text}
            prompt = "".join(values[part] if at % 2 else part for at, part in enumerate(parts))
            yield vocab.tokenize(prompt, add_special=False, parse_special=True)
        return
    end = [vocab.sep if vocab.eos == -1 else vocab.eos] if vocab.add_eos else []
    begin = [vocab.bos] if vocab.add_bos and vocab.bos != -1 else []
    between = [vocab.sep] if vocab.add_sep and vocab.sep != -1 else []
    first = begin + vocab.tokenize(query, add_special=False, parse_special=False) + end + between
    for text in documents:
        yield first + vocab.tokenize(text, add_special=False, parse_special=False) + end


def _probability(vectors: Vectors) -> float:
    """Return the probability of the first class. A head with labels returns probabilities, others a logit."""
    row = vectors[0]
    if len(row) > 1 and row.min() >= 0.0 and abs(float(row.sum()) - 1.0) < 1e-3:
        return float(row[0])
    return 0.5 + 0.5 * math.tanh(0.5 * float(row[0]))  # the logistic function, without overflow
