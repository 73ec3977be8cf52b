"""LoRA adapters: ``lora`` of one request, and ``/lora-adapters`` for all requests (llama.cpp
tools/server/server-common.cpp, parse_lora_request; server-task.cpp, server_task_result_get_lora).

Both take a list of ``{"id", "scale"}``; adapters that are not listed are off. In a request, an empty list keeps
the scales that are set for all requests. llama-server ignores unknown ids; here they are errors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, RootModel

from server.dialects.common import Json
from server.dialects.fields import Body, field_error, parse
from server.engine.lora import MAX_ADAPTERS, Adapter
from server.engine.request import Adapters
from server.errors import InvalidRequest, NotFound
from server.pool.model import LoadedModel
from server.vocab import Vocab

MAX_SCALE = 100.0
"""Adapters are trained for scales around 1. At a scale of 100,000 the demo model's logits are not finite, and the
recovery delays sequences in the same batch (`server.engine.loop`).
"""


class AdapterScale(Body):
    """The scale of one adapter."""

    id: int
    scale: Annotated[float, Field(ge=-MAX_SCALE, le=MAX_SCALE)]


def _unique(given: list[AdapterScale]) -> list[AdapterScale]:
    if len({each.id for each in given}) != len(given):
        raise ValueError("names an adapter twice")
    return given


AdapterScales = Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS), AfterValidator(_unique)]


class _Scales(RootModel[AdapterScales]):
    """The body of ``POST /lora-adapters``."""

    model_config = ConfigDict(defer_build=True)


def pairs(given: Sequence[AdapterScale] | None) -> Adapters:
    """Return ids and scales as the client gave them."""
    return tuple((each.id, each.scale) for each in given or ())


def request_adapters(given: Sequence[AdapterScale] | None, model: LoadedModel, name: str | None) -> Adapters | None:
    """Return the engine's adapter scales, None for those that are set for all requests.

    `name`: of the adapter that the request names as its model. Raises `InvalidRequest` for an unknown id.
    """
    if not given:
        named = [adapter.id for adapter in model.engine.adapters if adapter.name and adapter.name == name]
        return ((named[0], 1.0),) if named else None
    if fault := _unknown_id(given, model.engine.adapters):
        raise field_error("lora", fault)
    return _nonzero_scales(given)


def read_scales(body: object, loaded: Sequence[Adapter]) -> Adapters:
    """Parse the body of ``POST /lora-adapters``. Raises `InvalidRequest`."""
    if not isinstance(body, list):
        raise InvalidRequest("Request body must be an array")  # llama-server's text
    given = parse(_Scales, body).root
    if fault := _unknown_id(given, loaded):
        raise InvalidRequest(f"the request body is wrong: {fault}", "id")
    return _nonzero_scales(given)


class LoadAdapter(Body):
    """The body of ``POST /v1/load_lora_adapter``, vLLM's."""

    model: str = ""
    lora_name: Annotated[str, Field(max_length=256)] = ""
    lora_path: Annotated[str, Field(max_length=4096)] = ""
    load_inplace: bool = False


class UnloadAdapter(Body):
    """The body of ``POST /v1/unload_lora_adapter``."""

    model: str = ""
    lora_name: str = ""


def adapter_file(folder: Path, body: LoadAdapter) -> str:
    """Return the path of the file in `folder` that `body` names. Raises `InvalidRequest` for a path outside of `folder`
    or with symbolic links, and `NotFound`.
    """
    if not (body.lora_name and body.lora_path):
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.")  # vLLM's text
    root = folder.resolve()
    path = root / body.lora_path
    try:
        is_allowed = not path.is_symlink() and path.resolve() == path and path.is_relative_to(root)
        if is_allowed and path.is_file():
            return str(path)
    except (OSError, ValueError):  # too long, or with a null byte
        is_allowed = True
    except RuntimeError:  # a circular link
        is_allowed = False
    if not is_allowed:
        raise InvalidRequest("lora_path: must be a file below the folder of --lora-dir, without links", "lora_path")
    raise NotFound(f"Loading lora {body.lora_name} failed: No adapter found for {body.lora_path}")


_FIELDS = ("id", "path", "scale", "task_name", "prompt_prefix")


def adapter_objects(loaded: Sequence[Adapter], vocab: Vocab) -> list[Json]:
    """Return the reply of ``GET /lora-adapters``. Only adapters with an invocation string have that field."""
    objects: list[Json] = []
    for adapter in loaded:
        objects.append({name: getattr(adapter, name) for name in _FIELDS})
        if adapter.name:
            objects[-1]["lora_name"] = adapter.name
        if tokens := adapter.alora_invocation_tokens:
            objects[-1]["alora_invocation_string"] = vocab.detokenize(tokens).decode("utf-8", "replace")
            objects[-1]["alora_invocation_tokens"] = list(tokens)
    return objects


def _unknown_id(given: Sequence[AdapterScale], loaded: Sequence[Adapter]) -> str:
    """Return the reason if an id is unknown, otherwise ""."""
    ids = [adapter.id for adapter in loaded]
    for id_, _ in pairs(given):
        if id_ not in ids:
            have = f"there are adapters {', '.join(map(str, ids))}" if loaded else "this model has no adapters"
            return f"no adapter has the id {id_}; {have}"
    return ""


def _nonzero_scales(given: Sequence[AdapterScale]) -> Adapters:
    return tuple(sorted((id_, scale) for id_, scale in pairs(given) if scale))
