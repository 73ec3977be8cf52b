"""LoRA sets: which one computes a sequence's cells, and what of another sequence's cells it may reuse. Pure.

A set is context-wide in the library, so only sequences with the same one share a step. An activated LoRA (aLoRA)
works from its invocation text on: the cells before it are the bare model's, and may be shared with it.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from server.engine.request import Adapters
from server.errors import InvalidRequest

NEVER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Adapter:
    """One loaded adapter with the scale that requests get which ask for none (llama-server's /lora-adapters)."""

    id: int
    path: str
    scale: float = 1.0
    task_name: str = ""
    prompt_prefix: str = ""
    alora_invocation_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """What computes a sequence: ``adapters`` from position ``start`` on, the bare model before; and for whom
    (`cache_scope`)."""

    adapters: Adapters = ()
    start: int = NEVER
    scope: str = ""

    def at(self, position: int) -> Adapters:
        """The set that computes the token at `position`."""
        return self.adapters if position >= self.start else ()


BARE = Tuning()


def reusable(n: int, cells: Tuning, wanted: Tuning) -> int:
    """How many of the first `n` cells, computed under `cells`, `wanted` would compute, too; none of another scope."""
    if cells == wanted:
        return n
    return min(n, cells.start, wanted.start) if cells.scope == wanted.scope else 0


def check_adapters(wanted: Adapters, loaded: Sequence[Adapter]) -> None:
    """Raises `InvalidRequest` for an adapter that is not there."""
    ids = [id_ for id_, _ in wanted]
    if ids != sorted(set(ids)) or any(scale == 0.0 or not math.isfinite(scale) for _, scale in wanted):
        raise InvalidRequest("lora: ids must ascend, and scales be finite and not 0", "lora")
    if any(not 0 <= id_ < len(loaded) for id_ in ids):
        raise InvalidRequest(f"lora: there are {len(loaded)} adapters", "lora")


def rescaled(loaded: Sequence[Adapter], scales: Adapters) -> tuple[Adapter, ...]:
    """`loaded` with these scales, and 0 for those left out. Raises `InvalidRequest` for one that is not there."""
    check_adapters(scales, loaded)
    wanted = dict(scales)
    return tuple(replace(adapter, scale=wanted.get(adapter.id, 0.0)) for adapter in loaded)


def default_set(adapters: Iterable[Adapter]) -> Adapters:
    """The set of requests that ask for none."""
    return tuple((a.id, a.scale) for a in adapters if a.scale != 0.0)


def tuning(wanted: Adapters, loaded: Sequence[Adapter], prompt: Sequence[int], scope: str = "") -> Tuning:
    """Where `wanted` begins to work in `prompt`; an aLoRA whose invocation is not in it stays off.

    llama-server's rule (server-context.cpp, launch_slot_with_task): it works from one token before the last
    invocation, and only when no adapter of another kind is on. Raises `InvalidRequest` for two aLoRAs, and for an
    adapter that is not there.
    """
    check_adapters(wanted, loaded)
    bare = Tuning(scope=scope) if scope else BARE
    if not wanted:
        return bare
    invocations = [loaded[id_].alora_invocation_tokens for id_, _ in wanted]
    if not all(invocations):
        return Tuning(wanted, 0, scope)
    if len(wanted) > 1:
        raise InvalidRequest("lora: Cannot run multiple aLoRAs in a single request", "lora")
    at = last_occurrence(prompt, invocations[0])
    return bare if at < 0 else Tuning(wanted, max(at - 1, 0), scope)


def last_occurrence(tokens: Sequence[int], part: Sequence[int]) -> int:
    """Where `part` last begins in `tokens`; -1 when it is not there."""
    wanted = list(part)
    for at in range(len(tokens) - len(wanted), -1, -1):
        if tokens[at] == wanted[0] and list(tokens[at : at + len(wanted)]) == wanted:
            return at
    return -1
