"""The configured models: the OpenAI list, llama-server's router endpoints, and their events."""

import time
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Request, Response

from server.dialects import common as wire
from server.dialects.messages.write import anthropic_model, anthropic_models
from server.engine.runner_api import Pooling
from server.errors import ConfigError, ModelNotFound, Unavailable, invalid, short
from server.pool.events import (
    EVERY_MODEL,
    DownloadEnded,
    DownloadProgress,
    ListChanged,
    PoolEvent,
    StatusChanged,
)
from server.pool.pool import Pool
from server.pool.protocols import FileProgress, ModelInfo
from server.pool.state import ModelFacts, ModelState, Status
from server.routes.openapi import FINDS, READS, describe
from server.serving.services import sees_files, services, wants_anthropic
from server.telemetry.record import RECORD
from server.transport.body import read_json
from server.transport.errors import json_reply
from server.transport.sse import EventStream

router = APIRouter(tags=["models"])

SUCCESS = {"success": True}
_STATUS_NAMES = {  # tools/server/server-models.h, server_model_status_to_string
    Status.READY: "loaded",
    Status.DRAINING: "loaded",  # an instance that is stopping counts as loaded until it has exited
    Status.FAILED: "unloaded",
}


@router.get("/v1/models")
@router.get("/models")
@describe("$Models", errors=(503,))
async def list_models(request: Request, reload: str = "") -> Response:
    """Return every configured model with its status: OpenAI's ``data`` with llama-server's router keys, and ``models``.

    ``?reload=1`` first reads the cache, the folder, the preset and the YAML again. Clients that send the header
    ``anthropic-version`` get Anthropic's list.
    """
    if reload:
        try:
            await services(request).pool.reload()
        except ConfigError as error:
            raise Unavailable(f"no model was changed: {error.message}") from None
    pool = services(request).pool
    states = [state for state in pool.states() if not state.spec.hidden]
    data = [each for state in states for each in model_objects(state, pool, with_files=sees_files(request))]
    if wants_anthropic(request):
        return json_reply(anthropic_models(data))
    models = [ollama_object(state.spec.id, capabilities(state)) for state in states]
    return json_reply({"models": models, "object": "list", "data": data})


@router.get("/models/sse")
@describe(stream="$ModelEvent")
async def model_events(request: Request) -> Response:
    """Stream status changes and load progress in llama-server's format until the server stops."""
    events = services(request).pool.subscribe()
    encoded = (wire.event(event_object(each)) async for each in events)
    return EventStream(request, encoded, on_close=events.close)


@router.get("/v1/models/{model_id:path}")
@describe("$Model", errors=(404,))
async def show_model(request: Request, model_id: str) -> Response:
    """Return one model by id or alias, or a LoRA adapter that was loaded at runtime. The id may contain slashes."""
    pool = services(request).pool
    if pool.knows(model_id):  # also with or without `:latest`
        model_id = pool.resolve(model_id).id
    states = pool.states()
    for model in (each for state in states for each in model_objects(state, pool, with_files=sees_files(request))):
        if model_id in model["aliases"]:
            return json_reply(anthropic_model(model) if wants_anthropic(request) else model)
    raise ModelNotFound(model_id, [state.spec.id for state in states])


@router.post("/models/load")
@describe("$Success", example={"model": "demo"}, errors=(*READS, *FINDS))
async def load_model(request: Request) -> Response:
    """Start loading a model. The body is ``{"model": id}``; the reply does not wait."""
    await services(request).pool.load(await _model_of_body(request))
    return json_reply(SUCCESS)


@router.post("/models/unload")
@describe("$Success", example={"model": "demo"}, errors=(*READS, *FINDS))
async def unload_model(request: Request) -> Response:
    """Start unloading a model, or stop its load. The body is ``{"model": id}``; the reply does not wait."""
    await services(request).pool.unload(await _model_of_body(request))
    return json_reply(SUCCESS)


@router.post("/models/pin")
@describe("$Success", example={"model": "demo", "pinned?": False}, errors=(*READS, *FINDS))
async def pin_model(request: Request) -> Response:
    """Pin a model until the server ends. The body is ``{"model": id, "pinned": true}``."""
    body = await read_json(request)
    pinned = body.get("pinned", True)
    if not isinstance(pinned, bool):
        raise invalid("pinned", "must be true or false")
    services(request).pool.pin(model_field(request, body), pinned=pinned)
    return json_reply(SUCCESS)


@router.post("/models")
@describe("$Success", example={"model": "ggml-org/tinygemma3-GGUF:Q8_0"}, errors=(*READS, *FINDS, 501))
async def download_model(request: Request) -> Response:
    """Start downloading a model into the hub's cache. The reply does not wait.

    The body is ``{"model": "owner/name[:quantization]"}``.
    """
    await services(request).pool.download(await _model_of_body(request))
    return json_reply(SUCCESS)


@router.delete("/models")
@describe("$Success", errors=(400, *FINDS))
async def remove_model(request: Request, model: str = "") -> Response:
    """Unload a model of the hub's cache, or stop its download, and delete its files."""
    await services(request).pool.remove(model_field(request, {"model": model}))
    return json_reply(SUCCESS)


async def _model_of_body(request: Request) -> str:
    return model_field(request, await read_json(request))


def model_field(request: Request, fields: Mapping[str, Any]) -> str:
    """Return ``model`` of a body or a query, and record it for the audit log. Raises `InvalidRequest`."""
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("model", "must be a non-empty string")
    request.scope[RECORD].subject = short(name)
    return name


def event_object(event: PoolEvent) -> dict[str, Any]:
    """Return an event in llama-server's format (tools/server/README.md, GET /models/sse)."""
    data: dict[str, Any]
    if isinstance(event, DownloadProgress):
        return {"model": event.model, "event": "download_progress", "data": {"progress": files_object(event.files)}}
    if isinstance(event, DownloadEnded):
        return {"model": event.model, "event": "download_finished" if event.ok else "download_failed"}
    if isinstance(event, ListChanged):
        return {"model": event.model, "event": "models_reload" if event.model == EVERY_MODEL else "model_remove"}
    if isinstance(event, StatusChanged):
        data = {"status": _STATUS_NAMES.get(event.status, event.status.value)}
        if event.status is Status.FAILED:
            data |= {"exit_code": 1, "failed": True, "reason": event.reason}
        elif event.status is Status.UNLOADED:
            data["exit_code"] = 0
        elif event.info is not None:
            data["info"] = {"meta": meta_object(event.info)}
    else:
        data = {"status": "loading", "progress": progress_object(event.value)}
    return {"model": event.model, "event": "model_status", "data": data}


def files_object(files: Iterable[FileProgress]) -> dict[str, Any]:
    """Return the progress of a download's files by URL (server-models.cpp, update_download_progress)."""
    return {file.url: {"done": file.done, "total": file.total} for file in files}


def model_objects(state: ModelState, pool: Pool, *, with_files: bool) -> list[dict[str, Any]]:
    """Return a model's entries of ``data``: its own, and as in vLLM one for each LoRA adapter loaded at runtime."""
    model = model_object(state, with_files=with_files)
    adapters = [adapter for adapter in state.adapters if pool.names_adapter(adapter.name)]
    roots = [adapter.path if with_files else PurePath(adapter.path).name for adapter in adapters]
    return [model] + [
        {**model, "id": each.name, "aliases": [each.name], "root": root, "parent": state.spec.id, "can_remove": False}
        for each, root in zip(adapters, roots, strict=True)
    ]


def model_object(state: ModelState, *, with_files: bool = False) -> dict[str, Any]:
    """Return one entry of ``data`` (server-context.cpp, get_res_model_info; server-models.cpp, get_router_models)."""
    spec = state.spec
    media = [kind for kind in ("image", "audio") if kind in state.media]
    model: dict[str, Any] = {
        "id": spec.id,
        "aliases": [spec.id, *spec.aliases],  # as in llama-server the id is an alias
        "tags": list(spec.tags),
        "object": "model",
        "created": int(state.facts.loaded_at if state.facts else time.time()),
        "owned_by": "llamacpp",
        "status": status_object(state, with_files=with_files),
        "architecture": {"input_modalities": ["text", *media], "output_modalities": ["text"]},
        "source": spec.origin,
        "can_remove": spec.origin == "cache",
    }
    if state.pinned:
        model["pinned"] = True
    if state.downloads:
        model["progress"] = files_object(state.downloads)
    if state.facts is not None:
        model["meta"] = meta_object(state.facts.info) | {"n_ctx": state.facts.n_ctx_seq}
        model["meta"]["memory"] = memory_object(state.facts)
    return model


def status_object(state: ModelState, *, with_files: bool) -> dict[str, Any]:
    """Return the router's ``status``. ``args`` are the flags that serve this model alone.

    ``args`` and the preset contain file names, so they need `with_files`.
    """
    status: dict[str, Any] = {
        "value": _STATUS_NAMES.get(state.status, state.status.value),
        "args": list(state.spec.args) if with_files else [],
    }
    if state.spec.preset and with_files:
        status["preset"] = state.spec.preset
    if state.status is Status.FAILED:
        status |= {"failed": True, "exit_code": 1, "reason": state.failure}
    elif state.status is Status.LOADING:
        status["progress"] = progress_object(state.progress)
    return status


def progress_object(value: float) -> dict[str, Any]:
    """Return the progress of a load, 0 to 1, as llama-server's only stage."""
    return {"stages": ["text_model"], "current": "text_model", "value": value}


def meta_object(info: ModelInfo) -> dict[str, Any]:
    names = ("vocab_type", "n_vocab", "n_ctx_train", "n_embd", "n_params", "size", "ftype")
    return {name: getattr(info, name) for name in names}


def memory_object(facts: ModelFacts) -> dict[str, Any]:
    """Return the model's memory in bytes by device, and notes about how it was fitted. Not in llama-server."""
    parts = ("weights", "context", "compute")
    devices = {name: {part: getattr(used, part) for part in parts} for name, used in facts.footprint.items()}
    return {"devices": devices, "notes": list(facts.fit.notes) if facts.fit else []}


def capabilities(state: ModelState) -> list[str]:
    """Return the model's capabilities with Ollama's names. llama-server reports completion for every model."""
    embedder = state.loaded.embedding if state.loaded else None
    ranks = embedder.info.pooling is Pooling.RANK if embedder else state.spec.configured_for("rerank")
    embeds = ["rerank" if ranks else "embedding"] * state.embeds
    return ["completion"] * state.generates + ["multimodal"] * bool(state.media) + embeds


def ollama_object(model_id: str, capabilities: list[str]) -> dict[str, Any]:
    """Return one entry of ``models``, with llama-server's constants."""
    details = {"parent_model": "", "format": "gguf", "family": "", "families": [""]}
    return {
        **{"name": model_id, "model": model_id, "modified_at": "", "size": "", "digest": "", "type": "model"},
        **{"description": "", "tags": [""], "capabilities": capabilities, "parameters": ""},
        "details": details | {"parameter_size": "", "quantization_level": ""},
    }
