"""Ollama's API (github.com/ollama/ollama, docs/api.md). Operations on Ollama's own model store return 501."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.common import Json
from server.dialects.dialect import Dialect
from server.dialects.ollama.models import SUCCESS, pull_lines, running, shown, tags
from server.dialects.ollama.parse import OLLAMA_CHAT, OLLAMA_GENERATE, OllamaChatBody, OllamaGenerateBody, OllamaRequest
from server.dialects.ollama.vectors import EmbedBody, OldEmbedBody, read_embed, read_old_embed
from server.dialects.vectors import VectorRequest
from server.dialects.warnings import as_header
from server.errors import (
    DownloadFailed,
    InvalidRequest,
    LlamapoolError,
    NotFound,
    NotSupported,
    PermissionDenied,
    invalid,
    short,
)
from server.pool.events import Subscription
from server.pool.names import hub_name
from server.pool.pool import Pool
from server.pool.spec import Task
from server.pool.state import Status
from server.routes.openapi import FINDS, HI, READS, TEXT, computes, describe
from server.serving.generate import embed, respond
from server.serving.services import lease_for, model_name, sees_files, services, target_of
from server.transport.body import read_as, read_json
from server.transport.errors import JSON_TYPE, json_reply
from server.transport.sse import NDJSON_TYPE, EventStream, while_connected, written

R = TypeVar("R", OllamaRequest, VectorRequest)
router = APIRouter(prefix="/api", tags=["ollama"])
_PULL = {"model": "demo", "stream?": False}
_SHORT_REPLY = {"options": {"num_predict": 16}, "stream": False}

VERSION = "0.24.0"
"""The Ollama version whose API this module implements. Clients check it before they use new features."""


@router.get("/version")
@describe("$OllamaVersion")
async def version() -> Response:
    """Return the version of Ollama whose API the server implements."""
    return json_reply({"version": VERSION})


@router.get("/tags")
@describe("$OllamaTags")
async def list_tags(request: Request) -> Response:
    """Return every configured model."""
    states = services(request).pool.states()
    return json_reply(tags([state for state in states if not state.spec.hidden]))


@router.get("/ps")
@describe("$OllamaPs")
async def list_running(request: Request) -> Response:
    """Return the loaded models, and when they expire."""
    return json_reply(running(services(request).pool.states()))


@router.post("/show")
@describe("$OllamaShown", example={"model": "demo"}, errors=(*READS, 404))
async def show(request: Request) -> Response:
    """Return a model's template, parameters and file metadata without loading it."""
    name = _model(await read_json(request))
    return json_reply(shown(await services(request).pool.describe(name)))


@router.post("/chat")
@computes("$OllamaAnswer", OllamaChatBody, {"messages": HI["messages"], **_SHORT_REPLY}, "$OllamaAnswer", NDJSON_TYPE)
async def post_chat(request: Request) -> Response:
    """Create a message that continues a conversation: JSON lines, or one object with ``"stream": false``.

    Without messages the model is only loaded, or unloaded with ``"keep_alive": 0``.
    """
    return await _answer(request, OLLAMA_CHAT)


@router.post("/generate")
@computes("$OllamaText", OllamaGenerateBody, {"prompt": "Hi", **_SHORT_REPLY}, "$OllamaText", NDJSON_TYPE)
async def post_generate(request: Request) -> Response:
    """Generate from a prompt: a user message, a raw prompt (``raw``), or a prefix with a ``suffix``."""
    return await _answer(request, OLLAMA_GENERATE)


async def _answer(request: Request, dialect: Dialect[OllamaRequest]) -> Response:
    parsed = _check_keep_alive(request, await read_as(request, dialect.parse))
    if parsed.only_loads:
        is_kept = await keep_loaded(request, parsed.model, parsed.keep_alive_s)
        return json_reply(parsed.reply.empty("load" if is_kept else "unload"), headers=as_header(parsed.warnings))
    return await respond(request, dialect, parsed)


@router.post("/embed")
@computes("$OllamaVectors", EmbedBody, {"input": ["Hi", "Hello"]})
async def post_embed(request: Request) -> Response:
    """Create a normalized embedding of each text."""
    return await _embed(request, await read_as(request, read_embed))


@router.post("/embeddings")
@computes("$OllamaVector", OldEmbedBody, {"prompt": "Hi"})
async def post_embeddings(request: Request) -> Response:
    """Create the embedding of one text. Superseded by `/api/embed`."""
    return await _embed(request, await read_as(request, read_old_embed))


async def _embed(request: Request, parsed: VectorRequest) -> Response:
    parsed = _check_keep_alive(request, parsed)
    if parsed.empty:
        await keep_loaded(request, parsed.model, parsed.keep_alive_s, "embed")
        return Response(parsed.empty, headers=as_header(parsed.warnings), media_type=JSON_TYPE)
    return await embed(request, parsed)


@router.post("/pull")
@describe("$OllamaPulled", None, _PULL, "$OllamaPulled", NDJSON_TYPE, errors=(*READS, *FINDS, 501))
async def pull(request: Request) -> Response:
    """Download ``owner/name[:quantization]``: lines of progress, or the last line with ``"stream": false``.

    Updates an existing model if its hub is reachable, and follows a running download. A download started by this
    request stops when its client disconnects, and resumes at the next pull.
    """
    body = await read_json(request)
    streams = body.get("stream")
    if not isinstance(streams, bool | None):
        raise invalid("stream", "must be a boolean")
    name = _model(body)
    if name is None:
        raise invalid("model", "is required")
    pool = services(request).pool
    events = pool.subscribe()
    try:
        model, is_new = await while_connected(request, _find_or_start(pool, name))
    except BaseException:
        events.close()
        raise
    lines = _progress(pool, model, events, is_new=is_new)
    if streams is not False:
        encoded = written(lines, lambda line: orjson.dumps(line) + b"\n")
        return EventStream(request, encoded, on_close=events.close, ping_s=0, media_type=NDJSON_TYPE)
    with events:
        last = await while_connected(request, _last(lines))
    if "error" in last:
        raise DownloadFailed(last["error"])
    return json_reply(last)


async def _find_or_start(pool: Pool, name: str) -> tuple[str, bool]:
    """Return the model whose download a pull follows, and whether the pull started it. "": all its files exist.

    The name of a repository with several models in the cache starts the download of its default model. If the download
    is impossible or this key may not start it, an existing model with that name is enough.
    """
    repository = hub_name(name)
    if found := _find(pool, name):
        return found
    try:
        await pool.download(repository)
    except (DownloadFailed, NotFound, NotSupported, PermissionDenied):
        if not pool.knows(name):
            raise
        return "", False
    except InvalidRequest:  # another request may have started it meanwhile
        if found := _find(pool, name):
            return found
        raise
    return repository, True


def _find(pool: Pool, name: str) -> tuple[str, bool] | None:
    """Return what `_find_or_start` does for a model or a download with this name; None if there is none, or if it is
    the repository of a cached model.
    """
    spec = pool.find(name)
    if spec is None or (spec.origin == "cache" and hub_name(name) in spec.aliases):
        return None
    is_new = pool.fetch(spec.id)
    is_downloading = any(each.spec.id == spec.id and each.status is Status.DOWNLOADING for each in pool.states())
    return spec.id if is_downloading else "", is_new


async def _progress(pool: Pool, model: str, events: Subscription, *, is_new: bool) -> AsyncGenerator[Json, None]:
    """Yield the lines of a pull. Stop a download that the pull started if its client disconnects, unless requests wait
    for the model.
    """
    if not model:  # all files exist
        yield SUCCESS
        return
    line: Json = {}
    try:
        async for line in pull_lines(model, events):
            yield line
    finally:
        if is_new and line != SUCCESS and "error" not in line:
            with suppress(LlamapoolError):  # the download may have ended meanwhile
                if not any(each.spec.id == model and each.n_waiting for each in pool.states()):
                    await pool.unload(model)


async def _last(lines: AsyncGenerator[Json, None]) -> Json:
    async with aclosing(lines):
        return [line async for line in lines][-1]


@router.delete("/delete")
@describe(media=TEXT, example={"model": "org/model-GGUF:Q8_0"}, errors=(*READS, *FINDS))
async def delete(request: Request) -> Response:
    """Unload a model of the hub's cache, or stop its download, and delete its files."""
    name = _model(await read_json(request))
    if name is None:
        raise invalid("model", "is required")
    await services(request).pool.remove(hub_name(name))
    return Response()


@router.post("/push")
@router.post("/create")
@router.post("/copy")
@describe(status=None, errors=(501,))
async def manage(request: Request) -> Response:
    """Reply with 501, because models are files of a hub or of the configuration, not layers of Ollama's store."""
    raise _not_supported(target_of(request).path.rpartition("/")[2])


@router.post("/blobs/{digest}")
@router.get("/blobs/{digest}")
@describe(status=None, errors=(501,))
async def blobs(digest: str) -> Response:
    """Reply with 501, as for `/api/create`, which uses blobs."""
    raise _not_supported(f"blobs/{short(digest)}")


def _not_supported(operation: str) -> NotSupported:
    return NotSupported(
        f"{operation}: this server's models are files of a hub or of its configuration; change them there"
    )


def _check_keep_alive(request: Request, parsed: R) -> R:
    """Remove ``keep_alive``, which can unload a model, from a request whose key may not load and unload models."""
    if parsed.keep_alive_s is None or sees_files(request):
        return parsed
    ignored = "keep_alive: needs a key that may load and unload models"
    return replace(parsed, keep_alive_s=None, warnings=[*parsed.warnings, ignored])


async def keep_loaded(request: Request, model: str | None, keep_alive_s: float | None, task: Task = "generate") -> bool:
    """Load the model and keep it for `keep_alive_s`, or unload it when idle if that is 0. Return whether it is kept."""
    pool = services(request).pool
    if keep_alive_s == 0 and pool.state(model, task).status is not Status.READY:
        return False
    with await lease_for(request, model, task) as lease:
        lease.keep_alive_s = keep_alive_s
    return keep_alive_s != 0


def _model(body: Json) -> str | None:
    """Return ``model`` of a body, or ``name``, its name in older clients."""
    return model_name(body) or model_name(body, "name")
