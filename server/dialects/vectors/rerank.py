"""``/rerank`` in Jina's shape and in that of Text Embeddings Inference (TEI), which has ``texts``; ``/v2/rerank`` in
Cohere's.

llama.cpp tools/server/server-context.cpp, post_rerank, and server-common.cpp, format_prompt_rerank. Beyond it:
documents as objects with ``text``, Jina's ``return_documents``, and TEI's ``raw_scores`` where it is given.
"""

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import orjson
from pydantic import Field

from server.dialects.common import Json
from server.dialects.fields import Body, Count, parse
from server.dialects.vectors.embeddings import MAX_INPUTS
from server.dialects.warnings import known_fields
from server.engine.runner_api import Pooling, Vectors
from server.errors import InvalidRequest
from server.pool.model import LoadedModel, cannot_rerank
from server.vocab import Vocab

_PLACES = re.compile(r"\{(query|document)\}")


class Document(Body):
    """A text of a document."""

    text: str


Documents = Annotated[list[str | Document], Field(min_length=1, max_length=MAX_INPUTS)]


_WANTED = '"documents" must be a non-empty string array'


class RerankBody(Body):
    """The body of every rerank endpoint."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "query?": '"query" must be provided',
        "query": '"query" must be a string',
        **dict.fromkeys(("documents", "documents.*", "documents.*.text", "texts", "texts.*", "texts.*.text"), _WANTED),
    }
    model: str | None = None
    query: str
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None


ResponseFormat = Literal["jina", "tei", "cohere"]
COHERE_FIELDS = known_fields(RerankBody).keys() - {"texts", "return_text", "raw_scores"}


@dataclass(frozen=True, slots=True)
class Rerank:
    """A checked body. ``shape``: whose reply is wanted."""

    body: RerankBody
    query: str
    documents: list[str]
    shape: ResponseFormat


@dataclass(frozen=True, slots=True)
class RerankJob:
    """`server.dialects.vectors.embeddings.VectorJob`: one input for each document."""

    inputs: list[list[int]]
    request: Rerank
    model: str

    def reply(self, found: Sequence[Vectors]) -> bytes:
        """Return the documents by falling score. The first class of the model's head is the score.

        Cohere's scores are between 0 and 1.
        """
        body, shape = self.request.body, self.request.shape
        scores = [float(vectors[0, 0]) for vectors in found]
        if body.raw_scores is False or shape == "cohere":
            scores = [_probability(vectors) for vectors in found]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        results = [self._result(i, scores[i]) for i in order[: body.top_n]]
        if shape == "tei":
            return orjson.dumps(results)
        n_tokens = sum(map(len, self.inputs))
        if shape == "cohere":
            billed = {"search_units": 1}
            meta = {"api_version": {"version": "2"}, "billed_units": billed, "tokens": {"input_tokens": n_tokens}}
            return orjson.dumps({"id": str(uuid.uuid4()), "results": results, "meta": meta})
        return orjson.dumps(
            {
                "model": self.model,
                "object": "list",
                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
                "results": results,
            }
        )

    def _result(self, index: int, score: float) -> Json:
        text = self.request.documents[index]
        if self.request.shape == "tei":
            shown: Json = {"index": index, "score": score}
            return shown | {"text": text} if self.request.body.return_text else shown
        shown = {"index": index, "relevance_score": score}
        return shown | {"document": {"text": text}} if self.request.body.return_documents else shown


def read_rerank(given: object, *, cohere: bool = False) -> Rerank:
    """Validate the fields that don't depend on a model. `cohere`: the endpoint is Cohere's. Raises `InvalidRequest`."""
    body = parse(RerankBody, given)
    uses_texts = body.documents is None and body.texts is not None and not cohere
    documents = body.texts if uses_texts else body.documents
    if documents is None:
        raise InvalidRequest(_WANTED, "documents")
    texts = [each.text if isinstance(each, Document) else each for each in documents]
    shape: ResponseFormat = "cohere" if cohere else "jina" if body.texts is None else "tei"
    return Rerank(body, body.query, texts, shape)


def rerank_job(request: Rerank, model: LoadedModel) -> RerankJob:
    """Tokenize; blocking, for a thread. Raises `NotSupported` for a model that is no reranker."""
    if model.embedder.info.pooling is not Pooling.RANK:
        raise cannot_rerank(model.spec.id)
    template = model.info.rerank_template
    if template:
        inputs = [_filled(template, request.query, text, model.vocab) for text in request.documents]
    else:
        inputs = _pairs(request.query, request.documents, model.vocab)
    return RerankJob(inputs, request, request.body.model or model.spec.id)


def _filled(template: str, query: str, document: str, vocab: Vocab) -> list[int]:
    """The tokens of the model's own prompt. Names in braces are places of the template only, not of the texts."""
    texts = {"query": query, "document": document}
    prompt = _PLACES.sub(lambda place: texts[place[1]], template)
    return vocab.tokenize(prompt, add_special=False, parse_special=True)


def _pairs(query: str, documents: Sequence[str], vocab: Vocab) -> list[list[int]]:
    """Return ``[BOS]query[EOS][SEP]document[EOS]`` with the tokens that the vocabulary adds; SEP if there is no EOS."""
    end = [vocab.sep if vocab.eos == -1 else vocab.eos] if vocab.add_eos else []
    begin = [vocab.bos] if vocab.add_bos and vocab.bos != -1 else []
    between = [vocab.sep] if vocab.add_sep and vocab.sep != -1 else []
    first = begin + vocab.tokenize(query, add_special=False, parse_special=False) + end + between
    return [first + vocab.tokenize(text, add_special=False, parse_special=False) + end for text in documents]


def _probability(vectors: Vectors) -> float:
    """Return the first class's probability. A head with labels gives probabilities, others a logit."""
    row = vectors[0]
    if len(row) > 1 and row.min() >= 0.0 and abs(float(row.sum()) - 1.0) < 1e-3:
        return float(row[0])
    return 0.5 + 0.5 * math.tanh(0.5 * float(row[0]))  # the logistic function, without overflow
