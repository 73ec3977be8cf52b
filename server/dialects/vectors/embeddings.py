"""``/v1/embeddings`` and llama-server's own ``/embeddings`` (llama.cpp tools/server/server-context.cpp,
handle_embeddings_impl). Beyond it: ``dimensions``, and a limit to the number of inputs.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import orjson
from pydantic import AfterValidator

from server.chat.conversation import Media, TextPart
from server.dialects.common import Json
from server.dialects.completions.prompt import GivenPrompt, TextWithMedia, read_mixed, read_object, read_prompt
from server.dialects.content import PartReader
from server.dialects.fields import INT32_MAX, Body, Prompt, Whole, field_error, parse, within
from server.engine.media import MediaPrompt
from server.engine.runner_api import Pooling, Vectors
from server.errors import InvalidRequest
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel

NONE, MAX_ABSOLUTE, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
MAX_NORM = 1000
_INT16_RANGE = 32760.0


class VectorJob(Protocol):
    """The inputs to compute, and the writer of the response."""

    @property
    def inputs(self) -> Sequence[Sequence[int] | MediaPrompt]:
        """Return the tokens of each input, with its media."""

    def reply(self, found: Sequence[Vectors]) -> bytes:
        """The reply's JSON; blocking, for a thread."""


def normalized(vectors: Vectors, norm: int) -> Vectors:
    """Each row at length 1 under `norm` (llama.cpp common/common.cpp, common_embd_normalize): -1 as it is, 0 the
    largest component at 32760, 1 taxicab, 2 euclidean, p the p-norm. A row of zeros stays one."""
    if norm == NONE:
        return vectors
    rows = vectors.astype(np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if norm == MAX_ABSOLUTE:
        length = largest / _INT16_RANGE
    else:  # scaled by the largest value, whose power could overflow
        parts = np.abs(np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0))
        length = largest * (parts**norm).sum(axis=1, keepdims=True) ** (1.0 / norm)
    result: Vectors = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0).astype(np.float32)
    return result


def base64_floats(vector: Vectors) -> str:
    """The numbers as little-endian 32-bit floats, as OpenAI's ``encoding_format: base64``."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


MAX_INPUTS = 2048
"""Most texts of one request; OpenAI's limit."""
_FORMS = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of '
    "mixed strings & tokens."
)


class EmbeddingsBody(Body):
    """The body of every embeddings endpoint. ``user`` and other fields of OpenAI's change nothing."""

    model: str | None = None
    input: Prompt = None
    content: Prompt = None
    encoding_format: Literal["float", "base64"] | None = None
    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "encoding_format": "The format to return the embeddings in. Can be either float or base64"
    }
    dimensions: Annotated[Whole, AfterValidator(within(1, INT32_MAX))] | None = None
    embd_normalize: Annotated[Whole, AfterValidator(within(-1, MAX_NORM))] | None = None


@dataclass(frozen=True, slots=True)
class ParsedEmbeddings:
    """A checked body. ``native``: the reply is llama-server's own, as always with ``content``."""

    body: EmbeddingsBody
    prompts: list[GivenPrompt]
    native: bool


@dataclass(frozen=True, slots=True)
class EmbeddingsJob:
    """`server.dialects.vectors.embeddings.VectorJob`: one vector for each text, or with pooling none one for each
    token."""

    inputs: list[MediaPrompt]
    model: str
    native: bool
    base64: bool
    dimensions: int
    norm: int

    def reply(self, found: Sequence[Vectors]) -> bytes:
        """llama-server's list, or OpenAI's object."""
        rows = [np.ascontiguousarray(normalized(vectors[:, : self.dimensions], self.norm)) for vectors in found]
        if self.native:
            shown: Any = [{"index": i, "embedding": vectors} for i, vectors in enumerate(rows)]
        else:
            n_tokens = sum(map(len, self.inputs))
            shown = {
                "model": self.model,
                "object": "list",
                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
                "data": [self._entry(i, vectors[0]) for i, vectors in enumerate(rows)],
            }
        return orjson.dumps(shown, option=orjson.OPT_SERIALIZE_NUMPY)

    def _entry(self, index: int, vector: Vectors) -> Json:
        if not self.base64:
            return {"embedding": vector, "index": index, "object": "embedding"}
        return {
            "embedding": base64_floats(vector),
            "index": index,
            "object": "embedding",
            "encoding_format": "base64",
        }


def read_embeddings(given: object, *, native: bool) -> ParsedEmbeddings:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(EmbeddingsBody, given)
    if body.input is not None:
        return ParsedEmbeddings(body, _prompts(body.input, "input"), native)
    if body.content is not None:
        return ParsedEmbeddings(body, _prompts(body.content, "content"), True)
    raise InvalidRequest('"input" or "content" must be provided', "input")


def embeddings_job(
    request: ParsedEmbeddings, model: LoadedModel, seen: Seen = NOTHING_SEEN, *, openai: bool
) -> EmbeddingsJob:
    """Tokenize the inputs. Blocks. `openai`: the path is under ``/v1``. Raises `InvalidRequest`."""
    body, info = request.body, model.embedder.info
    if openai and info.pooling is Pooling.NONE:
        raise InvalidRequest("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if body.dimensions is not None and body.dimensions > info.n_embd:
        raise field_error(
            "dimensions", f"the model's vectors have {info.n_embd} dimensions; {body.dimensions} were requested"
        )
    norm = model.spec.embd_normalize if body.embd_normalize is None else body.embd_normalize
    return EmbeddingsJob(
        inputs=[_input(prompt, model, seen) for prompt in request.prompts],
        model=body.model or model.spec.id,
        native=request.native,
        base64=body.encoding_format == "base64",
        dimensions=body.dimensions or info.n_embd,
        norm=-1 if info.pooling in (Pooling.NONE, Pooling.RANK) else norm,
    )


def _input(prompt: GivenPrompt, model: LoadedModel, seen: Seen) -> MediaPrompt:
    found = read_prompt(prompt, model, seen, "input")
    if not found.tokens:
        raise InvalidRequest("Input content cannot be empty", "input")
    return found


def _prompts(value: object, path: str) -> list[GivenPrompt]:
    """One text in any form, or a list of them; a list with a number in it is one text of tokens."""
    if not isinstance(value, list) or any(isinstance(entry, int | float) for entry in value):
        return [_prompt(value, path)]
    if not value:
        raise InvalidRequest('"input" must not be empty', path)
    if len(value) > MAX_INPUTS:
        raise field_error(path, f"has {len(value)} texts, at most {MAX_INPUTS} are possible")
    return [_prompt(entry, f"{path}.{index}") for index, entry in enumerate(value)]


def _prompt(value: object, path: str) -> GivenPrompt:
    if isinstance(value, str | list):
        return read_mixed(value, path)
    if isinstance(value, dict) and "content" in value:
        return _content_text(value["content"], f"{path}.content")
    if isinstance(value, dict) and "prompt_string" in value:
        return read_object(value, path)
    raise InvalidRequest(_FORMS, path)


def _content_text(parts: object, path: str) -> GivenPrompt:
    """A chat message's content parts (server-common.cpp, tokenize_oai_content_array): nothing between them."""
    if not isinstance(parts, list):
        raise InvalidRequest('"content" must be an array', path)
    reader = PartReader()
    found = [part.text if isinstance(part, TextPart) else part for part in reader.read(parts, path)]
    if reader.skipped:
        raise field_error(path, "unsupported content[].type")
    media = tuple(part for part in found if isinstance(part, Media))
    text = "".join(part for part in found if isinstance(part, str))
    return TextWithMedia(text, media, lambda _: found) if media else text
