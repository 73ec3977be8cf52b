"""Ollama's API (github.com/ollama/ollama, docs/api.md). What only Ollama's own store of models can do is refused."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, NotSupported
from server.pool.names import LATEST
from server.pool.spec import Task
from server.pool.state import Status
from server.routes.embed import embed, read_able
from server.routes.generate import StreamWords, reply, stream
from server.routes.services import services, wants_load
from server.transport.body import read_as, read_json
from server.transport.disconnect import while_connected
from server.transport.reply import JSON_TYPE, json_reply
from server.transport.sse import NDJSON_TYPE
from server.wire.ollama.errors import error_line
from server.wire.ollama.fields import without_effect
from server.wire.ollama.models import running, shown, tags
from server.wire.ollama.read import Ask, Options, generation, read_chat, read_generate
from server.wire.ollama.vectors import Embed, embed_job, read_embed, read_old_embed
from server.wire.warnings import as_header

router = APIRouter(prefix="/api", tags=["ollama"])

_WORDS = StreamWords(error_line, media_type=NDJSON_TYPE)
_SHOWN_CHARS = 100  # of a client's own words in a message
VERSION = "0.24.0"
"""The Ollama whose API this is; its clients ask before they use what is new."""


@router.get("/version")
async def version() -> Response:
    """The version of Ollama whose API is spoken."""
    return json_reply({"version": VERSION})


@router.get("/tags")
async def list_tags(request: Request) -> Response:
    """Every configured model."""
    return json_reply(tags(services(request).pool.states()))


@router.get("/ps")
async def list_running(request: Request) -> Response:
    """The models in memory, and until when they stay."""
    return json_reply(running(services(request).pool.states()))


@router.post("/show")
async def show(request: Request) -> Response:
    """One model's template, parameters and facts, which stand in its file: it is not loaded for them."""
    given = await read_json(request)
    return json_reply(shown(await services(request).pool.describe(_model(given))))


@router.post("/chat")
async def post_chat(request: Request) -> Response:
    """A message that answers a conversation: lines of JSON as it is written, or one object with ``"stream": false``.
    Without messages the model is only loaded, or freed with ``"keep_alive": 0``."""
    return await _ask(request, read_chat)


@router.post("/generate")
async def post_generate(request: Request) -> Response:
    """As `/api/chat`, of a prompt: a user's message, a whole prompt (``raw``), or what is in front of a ``suffix``."""
    return await _ask(request, read_generate)


async def _ask(request: Request, read: Callable[[dict[str, Any]], Ask]) -> Response:
    ask, unused = await read_as(request, lambda given: (read(given), without_effect(given, Options.model_fields)))
    headers = as_header([*unused, *ask.warnings])
    model, keep_alive_s = ask.body.model or None, ask.body.keep_alive
    if ask.loads:
        stays = await stay(request, model, keep_alive_s)
        return json_reply(ask.reply.nothing("load" if stays else "unload"), headers=headers)
    if ask.streams:
        return await stream(
            *(request, model, lambda model: generation(ask, model)),
            ping_s=0,  # a line that says nothing is none that clients could read
            headers=headers,
            words=_WORDS,
            keep_alive_s=keep_alive_s,
        )
    return await reply(request, model, lambda model: generation(ask, model), headers=headers, keep_alive_s=keep_alive_s)


@router.post("/embed")
async def post_embed(request: Request) -> Response:
    """Vectors of length 1, one for each text."""
    return await _embed(
        request, *await read_able(request, "embed", lambda given: (read_embed(given), without_effect(given)))
    )


@router.post("/embeddings")
async def post_embeddings(request: Request) -> Response:
    """The vector of one text, as the model gives it; `/api/embed` has come after it."""
    read = await read_able(request, "embed", lambda given: (read_old_embed(given), without_effect(given)))
    return await _embed(request, *read)


async def _embed(request: Request, wanted: Embed, unused: list[str]) -> Response:
    headers = as_header(unused)
    if not wanted.texts:
        await stay(request, wanted.model, wanted.keep_alive_s, "embed")
        return Response(wanted.empty, headers=headers, media_type=JSON_TYPE)
    return await embed(
        *(request, wanted.model, "embed", lambda model: embed_job(wanted, model), headers),
        keep_alive_s=wanted.keep_alive_s,
    )


@router.post("/pull")
async def pull(request: Request) -> Response:
    """Nothing to do for a model that is there; no other can be fetched."""
    name = _model(await read_json(request)) or ""
    for state in services(request).pool.states():
        if name.removesuffix(LATEST) in (state.spec.id, *state.spec.aliases):
            return Response(b'{"status":"success"}\n', media_type=NDJSON_TYPE)
    raise _managed_elsewhere(f"pull '{name[:_SHOWN_CHARS]}'")


@router.post("/push")
@router.post("/create")
@router.post("/copy")
@router.delete("/delete")
async def manage(request: Request) -> Response:
    """Refused: the server's models are what its configuration names."""
    raise _managed_elsewhere(request.url.path.rpartition("/")[2])


@router.post("/blobs/{digest}")
@router.get("/blobs/{digest}")
async def blobs(digest: str) -> Response:
    """Refused, as what would be made of them is."""
    raise _managed_elsewhere(f"blobs/{digest[:_SHOWN_CHARS]}")


def _managed_elsewhere(what: str) -> NotSupported:
    return NotSupported(f"{what}: this server's models are the files that its configuration names; change them there")


async def stay(request: Request, model: str | None, keep_alive_s: float | None, task: Task = "generate") -> bool:
    """Load the model for nothing but `keep_alive_s`; with 0 free it as soon as it is idle. Returns whether it stays."""
    pool = services(request).pool
    if keep_alive_s == 0 and pool.state(model, task).status is not Status.READY:
        return False
    with await while_connected(request, pool.acquire(model, autoload=wants_load(request), task=task)) as lease:
        lease.keep_alive_s = keep_alive_s
    return keep_alive_s != 0


def _model(given: dict[str, Any]) -> str | None:
    """The name in a body, which older clients call ``name``."""
    for field in ("model", "name"):
        name = given.get(field)
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{field}: must be a string", field)
        if name:
            return name
    return None
