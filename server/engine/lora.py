"""LoRA sets: which set computes a sequence's cells, and which cells of another sequence it may reuse. Pure.

The library applies a set to the whole context, so only sequences with the same set share a step. An activated LoRA
(aLoRA) applies from its invocation text on. The cells before it are the base model's and may be shared with it.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from server.engine.request import Adapters
from server.errors import InvalidRequest

NEVER = sys.maxsize
MAX_ADAPTERS = 1024
"""Most adapters of a model, and of a request."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter with its default scale (llama-server's /lora-adapters).

    ``id``: its index in the configuration, or the next unused number. ``fingerprint``: hash of the file's content.
    ``name``: that of an adapter loaded at runtime; "" for a configured one.
    """

    id: int
    path: str
    scale: float = 1.0
    task_name: str = ""
    prompt_prefix: str = ""
    alora_invocation_tokens: tuple[int, ...] = ()
    fingerprint: str = ""
    name: str = ""
    n_bytes: int = 0  # of the file


@dataclass(frozen=True, slots=True)
class AdapterSet:
    """The LoRA set of a sequence: ``adapters`` from position ``start`` on, the base model before it; and its cache
    namespace (``scope``, see `cache_scope`).
    """

    adapters: Adapters = ()
    start: int = NEVER
    scope: str = ""

    def at(self, position: int) -> Adapters:
        """Return the LoRA set that computes the token at `position`."""
        return self.adapters if position >= self.start else ()


NO_ADAPTERS = AdapterSet()


def n_valid(n: int, cells: AdapterSet, wanted: AdapterSet) -> int:
    """Return how many of the first `n` cells, computed under `cells`, are valid under `wanted`. Zero for another
    namespace.
    """
    if cells == wanted:
        return n
    return min(n, cells.start, wanted.start) if cells.scope == wanted.scope else 0


def check_adapters(wanted: Adapters, loaded: Sequence[Adapter]) -> None:
    """Raise `InvalidRequest` if `wanted` names an adapter that is not loaded, or has an invalid scale."""
    ids = [id_ for id_, _ in wanted]
    if ids != sorted(set(ids)) or any(scale == 0.0 or not math.isfinite(scale) for _, scale in wanted):
        raise InvalidRequest("lora: ids must ascend, and scales be finite and not 0", "lora")
    for id_ in set(ids) - {adapter.id for adapter in loaded}:
        raise InvalidRequest(f"lora: no adapter has the id {id_}", "lora")


def rescaled(loaded: Sequence[Adapter], scales: Adapters) -> tuple[Adapter, ...]:
    """Return `loaded` with new default scales; omitted adapters get 0. Raises `InvalidRequest` for unknown adapters."""
    check_adapters(scales, loaded)
    wanted = dict(scales)
    return tuple(replace(adapter, scale=wanted.get(adapter.id, 0.0)) for adapter in loaded)


def default_set(adapters: Iterable[Adapter]) -> Adapters:
    """Return the LoRA set of requests that do not choose one."""
    return tuple((a.id, a.scale) for a in adapters if a.scale != 0.0)


def adapter_set(wanted: Adapters, loaded: Sequence[Adapter], prompt: Sequence[int], scope: str = "") -> AdapterSet:
    """Return the adapter set of a request for `wanted`. An aLoRA without its invocation in `prompt` is not used.

    llama-server's rule (server-context.cpp, launch_slot_with_task): an aLoRA applies from one token before its last
    invocation, and only if no other adapter is active. Raises `InvalidRequest` for two aLoRAs and for an unknown
    adapter.
    """
    check_adapters(wanted, loaded)
    base_model = AdapterSet(scope=scope) if scope else NO_ADAPTERS
    if not wanted:
        return base_model
    ids = {id_ for id_, _ in wanted}
    invocations = [adapter.alora_invocation_tokens for adapter in loaded if adapter.id in ids]
    if not all(invocations):
        return AdapterSet(wanted, 0, scope)
    if len(wanted) > 1:
        raise InvalidRequest("lora: Cannot run multiple aLoRAs in a single request", "lora")
    invocation = list(invocations[0])
    for at in range(len(prompt) - len(invocation), -1, -1):
        if prompt[at] == invocation[0] and list(prompt[at : at + len(invocation)]) == invocation:
            return AdapterSet(wanted, max(at - 1, 0), scope)
    return base_model
