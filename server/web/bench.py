"""`llamapool bench` for the page: a process for each scenario, against this server and, if wanted, another address.

It is the same program as on the command line, so its clients' work is no part of the server's own process.
"""

import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from server.dialects.fields import Body
from server.web.tools.catalogue import program

MOST_CLIENTS = 64
Scenario = Literal["prefix", "long", "conversations"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
"""The available scenarios, without the one that needs the server's own CPUs."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Address:
    """A server that is measured. ``name``: "this" or "other"."""

    name: str
    url: str
    model: str = ""
    key: str = ""


class BenchBody(Body):
    """The web UI's request: every scenario at this server and at another one, if it is named, in sequence."""

    scenarios: Annotated[list[Scenario], Field(min_length=1)]
    parallel: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] = 8
    scale: Annotated[float, Field(ge=0.01, le=1)] = 0.2
    other: Annotated[str, Field(pattern="^(https?://.*)?$")] = ""
    other_model: str = ""
    other_key: str = ""


async def measured(order: BenchBody, own: Address) -> AsyncGenerator[Json, None]:
    """Yield a result for each scenario and address when it finishes: ``figures`` or ``failure``. Both addresses get the
    same prompts.
    """
    other = Address("other", order.other, order.other_model, order.other_key)
    for number, scenario in enumerate(order.scenarios):
        seed = int.from_bytes(os.urandom(4), "big") >> 1
        for address in (own, other) if order.other else (own,):
            yield {"running": scenario, "address": address.name, "number": number, "of": len(order.scenarios)}
            yield {"scenario": scenario, "address": address.name} | await _result(order, scenario, address, seed)


async def _result(order: BenchBody, scenario: str, address: Address, seed: int) -> Json:
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
    env = {"OPENAI_API_KEY": key, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    async with program(sys.executable, "-m", "server", "bench", *words, stderr=PIPE, env=env) as process:
        found, said = await process.communicate()
    return found.decode("utf-8", "replace"), said.decode("utf-8", "replace")
