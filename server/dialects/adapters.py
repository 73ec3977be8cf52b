"""LoRA adapters: ``lora`` of one request, and ``/lora-adapters`` for all requests (llama.cpp
tools/server/server-common.cpp, parse_lora_request; server-task.cpp, server_task_result_get_lora).

Both take a list of ``{"id", "scale"}``; adapters that it does not name are off. In a request, an empty list keeps
the scales that are set for all requests. llama-server ignores unknown ids; here they are errors.
"""

from collections.abc import Sequence

from server.dialects.common import Json
from server.dialects.fields import field_error, json_type
from server.engine.lora import Adapter
from server.engine.request import Adapters
from server.errors import InvalidRequest
from server.pool.model import LoadedModel
from server.vocab import Vocab

MAX_ADAPTERS = 1024
MAX_SCALE = 100.0
"""Adapters are trained for scales around 1. At a hundred thousand the demo model's logits are not finite, which delays
sequences that share its batch (`server.engine.loop`).
"""


def read_adapters(value: object) -> Adapters:
    """Return (id, scale) pairs. Raises ValueError with the reason."""
    if not isinstance(value, list):
        raise ValueError("Error: 'lora' must be an array of objects with 'id' and 'scale' fields")
    if len(value) > MAX_ADAPTERS:
        raise ValueError(f"must have at most {MAX_ADAPTERS} entries")
    pairs = tuple(_pair(index, entry) for index, entry in enumerate(value))
    if len({id_ for id_, _ in pairs}) != len(pairs):
        raise ValueError("names an adapter twice")
    return pairs


def _pair(index: int, entry: object) -> tuple[int, float]:
    if not isinstance(entry, dict):
        raise ValueError(f"entry {index} must be an object with 'id' and 'scale', not {json_type(entry)}")
    id_, scale = entry.get("id"), entry.get("scale")
    if isinstance(id_, bool) or not isinstance(id_, int):
        raise ValueError(f"entry {index}: 'id' must be a whole number")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MAX_SCALE:
        raise ValueError(f"entry {index}: 'scale' must be a number within {-MAX_SCALE:g} and {MAX_SCALE:g}")
    return id_, float(scale)


def request_adapters(given: Adapters | None, model: LoadedModel) -> Adapters | None:
    """Return the engine's adapter scales: None = the scales set for all requests. Raises `InvalidRequest` for an
    unknown id.
    """
    if not given:
        return None
    fault = _unknown(given, model.engine.adapters)
    if fault:
        raise field_error("lora", fault)
    return _set_of(given)


def read_scales(body: object, loaded: Sequence[Adapter]) -> Adapters:
    """Parse the body of ``POST /lora-adapters``. Raises `InvalidRequest`."""
    if not isinstance(body, list):
        raise InvalidRequest("Request body must be an array")
    try:
        given = read_adapters(body)
    except ValueError as error:
        raise InvalidRequest(f"the request body {error}") from None
    fault = _unknown(given, loaded)
    if fault:
        raise InvalidRequest(f"the request body is wrong: {fault}", "id")
    return _set_of(given)


def adapter_objects(loaded: Sequence[Adapter], vocab: Vocab) -> list[Json]:
    """Return the reply of ``GET /lora-adapters``. Only adapters with an invocation string have that field."""
    return [_object(adapter, vocab) for adapter in loaded]


def _object(adapter: Adapter, vocab: Vocab) -> Json:
    shown: Json = {
        "id": adapter.id,
        "path": adapter.path,
        "scale": adapter.scale,
        "task_name": adapter.task_name,
        "prompt_prefix": adapter.prompt_prefix,
    }
    invocation = adapter.alora_invocation_tokens
    if invocation:
        shown["alora_invocation_string"] = vocab.detokenize(invocation).decode("utf-8", "replace")
        shown["alora_invocation_tokens"] = list(invocation)
    return shown


def _unknown(given: Adapters, loaded: Sequence[Adapter]) -> str:
    for id_, _ in given:
        if not 0 <= id_ < len(loaded):
            have = f"there are adapters 0 to {len(loaded) - 1}" if loaded else "this model has no adapters"
            return f"no adapter has the id {id_}; {have}"
    return ""


def _set_of(given: Adapters) -> Adapters:
    return tuple(sorted((id_, scale) for id_, scale in given if scale))
