"""LoRA adapters: ``lora`` of one request, and ``/lora-adapters`` for all requests (llama.cpp
tools/server/server-common.cpp, parse_lora_request; server-task.cpp, server_task_result_get_lora).

Both take a list of ``{"id", "scale"}``; adapters that it does not name are off. In a request, an empty list keeps
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
"""Adapters are trained for scales around 1. At a hundred thousand the demo model's logits are not finite, which delays
sequences that share its batch (`server.engine.loop`).
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
    """Return the engine's adapter scales: None = the scales set for all requests. A `name` of a model that is an
    adapter's asks for this one. Raises `InvalidRequest` for an unknown id.
    """
    if not given:
        named = [adapter.id for adapter in model.engine.adapters if adapter.name and adapter.name == name]
        return ((named[0], 1.0),) if named else None
    if fault := _unknown(given, model.engine.adapters):
        raise field_error("lora", fault)
    return _set_of(given)


def read_scales(body: object, loaded: Sequence[Adapter]) -> Adapters:
    """Parse the body of ``POST /lora-adapters``. Raises `InvalidRequest`."""
    if not isinstance(body, list):
        raise InvalidRequest("Request body must be an array")  # llama-server's text
    given = parse(_Scales, body).root
    if fault := _unknown(given, loaded):
        raise InvalidRequest(f"the request body is wrong: {fault}", "id")
    return _set_of(given)


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


def adapter_file(folder: Path, wanted: LoadAdapter) -> str:
    """Return the path of the file that `wanted` names, in `folder`. Raises `InvalidRequest` for one outside and for
    links, and `NotFound`.
    """
    if not (wanted.lora_name and wanted.lora_path):
        raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.")  # vLLM's text
    root = folder.resolve()
    path = root / wanted.lora_path
    try:
        direct = not path.is_symlink() and path.resolve() == path and path.is_relative_to(root)
        if direct and path.is_file():
            return str(path)
    except (OSError, ValueError):  # too long, or with a zero byte
        direct = True
    except RuntimeError:  # a link that leads to itself
        direct = False
    if not direct:
        raise InvalidRequest("lora_path: must be a file below the folder of --lora-dir, without links", "lora_path")
    raise NotFound(f"Loading lora {wanted.lora_name} failed: No adapter found for {wanted.lora_path}")


_SHOWN = ("id", "path", "scale", "task_name", "prompt_prefix")


def adapter_objects(loaded: Sequence[Adapter], vocab: Vocab) -> list[Json]:
    """Return the reply of ``GET /lora-adapters``. Only adapters with an invocation string have that field."""
    found: list[Json] = []
    for adapter in loaded:
        found.append({name: getattr(adapter, name) for name in _SHOWN})
        if adapter.name:
            found[-1]["lora_name"] = adapter.name
        if tokens := adapter.alora_invocation_tokens:
            found[-1]["alora_invocation_string"] = vocab.detokenize(tokens).decode("utf-8", "replace")
            found[-1]["alora_invocation_tokens"] = list(tokens)
    return found


def _unknown(given: Sequence[AdapterScale], loaded: Sequence[Adapter]) -> str:
    ids = [adapter.id for adapter in loaded]
    for id_, _ in pairs(given):
        if id_ not in ids:
            have = f"there are adapters {', '.join(map(str, ids))}" if loaded else "this model has no adapters"
            return f"no adapter has the id {id_}; {have}"
    return ""


def _set_of(given: Sequence[AdapterScale]) -> Adapters:
    return tuple(sorted((id_, scale) for id_, scale in pairs(given) if scale))
