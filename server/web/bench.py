"""`llamapool bench` for the page: a process for each scenario, against this server and, if wanted, another address.

It is the same program as on the command line, so its clients' work is no part of the server's own process.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest
from server.sandbox.process import public_environment

SCENARIOS = ("one", "slots", "prefix", "long", "conversations", "rate")
"""The available scenarios, without the one that needs the server's own CPUs."""
MOST_CLIENTS = 64
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Address:
    """A server that is measured. ``name``: "this" or "other"."""

    name: str
    url: str
    model: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """A benchmark request: every scenario at every address, in sequence."""

    addresses: tuple[Address, ...]
    scenarios: tuple[str, ...]
    parallel: int = 8
    scale: float = 0.2


def read_order(body: Json, own: Address) -> Order:
    """Parse the web UI's request. Raises `InvalidRequest`."""
    scenarios, parallel, scale = body.get("scenarios"), body.get("parallel", 8), body.get("scale", 0.2)
    if not isinstance(scenarios, list) or not scenarios or not set(map(str, scenarios)) <= set(SCENARIOS):
        raise InvalidRequest(f"scenarios: must be some of {', '.join(SCENARIOS)}", "scenarios")
    if not isinstance(parallel, int) or isinstance(parallel, bool) or not 0 < parallel <= MOST_CLIENTS:
        raise InvalidRequest(f"parallel: must be a number from 1 to {MOST_CLIENTS}", "parallel")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0.01 <= scale <= 1:
        raise InvalidRequest("scale: must be a number from 0.01 to 1", "scale")
    addresses = [own]
    if body.get("other"):
        other = {name: body.get(f"other{of}", "") for name, of in (("url", ""), ("model", "_model"), ("key", "_key"))}
        if not all(isinstance(value, str) for value in other.values()):
            raise InvalidRequest("other: must be an address", "other")
        if not other["url"].startswith(("http://", "https://")):
            raise InvalidRequest("other: must begin with http:// or https://", "other")
        addresses.append(Address("other", **other))
    return Order(tuple(addresses), tuple(scenarios), parallel, float(scale))


async def measured(order: Order) -> AsyncGenerator[Json, None]:
    """Yield a result for each scenario and address when it finishes: ``figures`` or ``failure``. Both addresses get the
    same prompts.
    """
    for number, scenario in enumerate(order.scenarios):
        seed = int.from_bytes(os.urandom(4), "big") >> 1
        for address in order.addresses:
            yield {"running": scenario, "address": address.name, "number": number, "of": len(order.scenarios)}
            yield {"scenario": scenario, "address": address.name} | await _result(order, scenario, address, seed)


async def _result(order: Order, scenario: str, address: Address, seed: int) -> Json:
    words = ["--url", address.url, "--scenario", scenario, "--json", "-", "--quiet", "--insecure"]
    words += ["--parallel", str(order.parallel), "--scale", str(order.scale), "--seed", str(seed)]
    words += [f"--model={address.model}"] if address.model else []
    found, said = await _run(words, address.key)
    try:
        outcome = json.loads(found)["scenarios"][0]
    except (ValueError, LookupError):
        lines = said.strip().splitlines() or ["nothing was said"]
        return {"failure": lines[-1].removeprefix("llamapool bench: ")}
    return {"failure": outcome["failure"]} if outcome["failure"] else {"figures": outcome["rounds"][0]}


async def _run(words: Sequence[str], key: str) -> tuple[str, str]:
    env = public_environment() | {
        "OPENAI_API_KEY": key,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server", "bench", *words), stdout=PIPE, stderr=PIPE, env=env, start_new_session=True
    )
    try:
        found, said = await process.communicate()
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return found.decode("utf-8", "replace"), said.decode("utf-8", "replace")
