"""Properties of a model or of the server, and LoRA adapters.

Source: tools/server/server-context.cpp, get_res_props; server-models.cpp for several models.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePath
from typing import Any

from fastapi import APIRouter, Request, Response

from server.dialects.adapters import LoadAdapter, UnloadAdapter, adapter_file, adapter_objects, read_scales
from server.dialects.common import FINGERPRINT
from server.dialects.fields import parse
from server.dialects.native.write import generation_settings
from server.engine.request import Request as EngineRequest
from server.errors import InvalidRequest, NotSupported, invalid, short, utf8
from server.media.decode import reads_video
from server.pool.model import Generator
from server.pool.state import ModelFacts, ModelState, Status
from server.routes.models import memory_object
from server.routes.openapi import FINDS, READS, TEXT, computes, describe
from server.serving.services import Services, facts_of, lease_for, model_name, sees_files, services
from server.transport.body import read_array, read_json
from server.transport.errors import json_reply
from server.transport.options import HttpOptions

router = APIRouter(tags=["models"])

MEDIA_MARKER = "<__media__>"
_CAPS = (  # llama.cpp's (common/jinja/caps.cpp, to_map)
    *("object_arguments", "parallel_tool_calls", "preserve_reasoning", "reasoning_effort", "string_content"),
    *("tool_calls", "tools", "typed_content"),
)


@router.get("/props")
@describe("$Props", errors=(400, *FINDS), loads=True)
async def props(request: Request, model: str = "") -> Response:
    """Return the properties of a model, or with several models and without ``model`` those of the server.

    A sleeping model is not woken. An unloaded model is loaded unless ``autoload`` is off.
    """
    app = services(request)
    states = app.pool.states()
    if not model and len(states) > 1 and sum(state.spec.configured_for("generate") for state in states) != 1:
        names = {"model_alias": "llamapool", "model_path": "none", "build_info": FINGERPRINT}
        ui = {"ui_settings": app.options.ui_config, "cors_proxy_enabled": app.options.proxy}
        settings = {"default_generation_settings": {"params": None, "n_ctx": 0}}
        return json_reply(router_props(app) | names | settings | ui)
    state, facts = await facts_of(request, model or None)
    of_model = model_props(state, facts, app.options)
    if not sees_files(request):
        of_model["model_path"] = utf8(state.spec.path.name)
    return json_reply(of_model if model or len(states) == 1 else router_props(app) | of_model)


@router.post("/props")
@describe("$Success", example={}, errors=(*READS, 404, 501))
async def change_props(request: Request) -> Response:
    """Return success if the server was started with ``--props``. As in llama-server no property can be changed.

    An attempt is an error that names the property, where llama-server reports success.
    """
    app = services(request)
    if not app.options.props:
        raise NotSupported("This server does not support changing global properties. Start it with `--props`")
    body = await read_json(request, optional=True)
    if name := model_name(body):
        app.pool.resolve(name)
    for field in (name for name in body if name != "model"):
        raise invalid(short(field), "is not a property that can be changed")
    return json_reply({"success": True})


def router_props(app: Services) -> dict[str, Any]:
    """Return the properties of a server with several models, as llama-server's router."""
    limits = app.pool.limits
    router = {"role": "router", "max_instances": limits.models_max, "models_autoload": limits.autoload}
    return router | {"memory_budget": dict(app.pool.budget)}


def model_props(state: ModelState, facts: ModelFacts, options: HttpOptions) -> dict[str, Any]:
    """Return the properties of one model, with llama-server's keys in its order."""
    spec, info, template = state.spec, facts.info, facts.template
    caps = {f"supports_{name}": bool(getattr(template.capabilities, name)) for name in _CAPS}
    caps |= {"supports_system_role": template.capabilities.system, "supports_thinking": template.supports_thinking}
    defaults = EngineRequest(id="", prompt=[], sampling=spec.sampling, max_tokens=spec.n_predict)
    properties: dict[str, Any] = {
        "default_generation_settings": {
            "params": generation_settings(defaults, spec.engine.asked_spec_type),
            "n_ctx": facts.n_ctx_seq,
        },
        "total_slots": facts.n_slots,
        "model_alias": spec.id,
        "model_ftype": info.ftype,
        "model_path": utf8(str(spec.path)),
        "modalities": {
            "vision": "image" in info.media,
            "video": "image" in info.media and reads_video(),
            "audio": "audio" in info.media,
        },
        "media_marker": info.media_marker or MEDIA_MARKER,
        "endpoint_slots": options.slots,
        "endpoint_props": options.props,
        "endpoint_metrics": options.metrics,
        "ui": options.ui,
        "ui_settings": options.ui_config,
        "chat_template": template.source,
        "chat_template_caps": dict(sorted(caps.items())),
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": FINGERPRINT,
        "is_sleeping": state.status is Status.SLEEPING,
        "cors_proxy_enabled": options.proxy,
        "memory": memory_object(facts),
    }
    if info.chat_template_tool_use:
        properties["chat_template_tool_use"] = info.chat_template_tool_use
    return properties


@router.get("/lora-adapters")
@describe(["$LoraAdapter"], errors=(400, *FINDS, 501), loads=True)
async def adapters(request: Request, model: str = "") -> Response:
    """Return the loaded adapters with their scales. Loads or wakes the model unless ``autoload`` is off."""
    with await lease_for(request, model or None) as lease:
        loaded = adapter_objects(lease.model.engine.adapters, lease.model.vocab)
    if not sees_files(request):
        for adapter in loaded:
            adapter["path"] = PurePath(adapter["path"]).name
    return json_reply(loaded)


@router.post("/lora-adapters")
@computes("$Success", example=[{"id": 0, "scale": 1.0}])
async def set_adapters(request: Request, model: str = "") -> Response:
    """Set the default scales for new requests. Adapters that are not listed are disabled."""
    body = await read_array(request)
    with await lease_for(request, model or None) as lease:
        engine = lease.model.engine
        engine.set_adapter_scales(read_scales(body, engine.adapters))
    return json_reply({"success": True})


def _adapter_folder(request: Request) -> Path:
    folder = services(request).options.lora_dir
    if folder is None:
        raise NotSupported("This server does not load LoRA adapters at runtime. Start it with `--lora-dir`")
    return folder


async def _change_adapters(request: Request, model: str, change: Callable[[Generator], Awaitable[object]]) -> None:
    """Run `change` with the model's engine to its end, even if the client disconnects."""
    pool = services(request).pool
    lease = await lease_for(request, model or None)

    async def work() -> None:
        with lease:
            await change(lease.model.engine)
            pool.adapters_changed()

    await asyncio.shield(work())


@router.post("/v1/load_lora_adapter")
@computes(media=TEXT, body=LoadAdapter, example={"lora_name": "formal", "lora_path": "formal.gguf"})
async def load_adapter(request: Request, model: str = "") -> Response:
    """Load a LoRA adapter from the folder of ``--lora-dir`` with scale 0, as vLLM. ``/lora-adapters`` has its id."""
    folder = _adapter_folder(request)
    body = parse(LoadAdapter, await read_json(request))
    pool, model = services(request).pool, model or body.model
    pool.check_adapter_name(body.lora_name, pool.resolve(model or None).id)

    async def load(engine: Generator) -> None:
        path = await asyncio.to_thread(adapter_file, folder, body)
        await engine.load_adapter(body.lora_name, path, body.load_inplace)

    await _change_adapters(request, model, load)
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type=TEXT)


@router.post("/v1/unload_lora_adapter")
@computes(media=TEXT, body=UnloadAdapter, example={"lora_name": "formal"})
async def unload_adapter(request: Request, model: str = "") -> Response:
    """Unload a LoRA adapter that was loaded at runtime, as vLLM. Waits for running requests that use it."""
    _adapter_folder(request)
    body = parse(UnloadAdapter, await read_json(request))
    if not body.lora_name:
        raise InvalidRequest("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
    await _change_adapters(request, model or body.model, lambda engine: engine.unload_adapter(body.lora_name))
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type=TEXT)
