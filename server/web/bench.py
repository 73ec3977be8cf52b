"""`llamapool bench` for the web UI: a process for each scenario, against this server and optionally another one.

The clients' work is done in that process, outside the server's own.
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

MAX_CLIENTS = 64
Scenario = Literal["prefix", "long", "conversations"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
"""The available scenarios, without the one that must run on the server's machine."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Address:
    """A measured server. ``name``: "this" or "other"."""

    name: str
    url: str
    model: str = ""
    key: str = ""


class BenchBody(Body):
    """The web UI's request: scenarios to run in sequence, at this server and at another one if it is named."""

    scenarios: Annotated[list[Scenario], Field(min_length=1)]
    parallel: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] = 8
    scale: Annotated[float, Field(ge=0.01, le=1)] = 0.2
    other: Annotated[str, Field(pattern="^(https?://.*)?$")] = ""
    other_model: str = ""
    other_key: str = ""


async def measured(request: BenchBody, this: Address) -> AsyncGenerator[Json, None]:
    """Run the benchmark. Yields a result for each scenario and server when it finishes: ``figures`` or ``failure``.

    Both servers receive the same prompts.
    """
    other = Address("other", request.other, request.other_model, request.other_key)
    for number, scenario in enumerate(request.scenarios):
        seed = int.from_bytes(os.urandom(4), "big") >> 1
        for address in (this, other) if request.other else (this,):
            yield {"running": scenario, "address": address.name, "number": number, "of": len(request.scenarios)}
            yield {"scenario": scenario, "address": address.name} | await _result(request, scenario, address, seed)


async def _result(request: BenchBody, scenario: str, address: Address, seed: int) -> Json:
    arguments = ["--url", address.url, "--scenario", scenario, "--json", "-", "--quiet", "--insecure"]
    arguments += ["--parallel", str(request.parallel), "--scale", str(request.scale), "--seed", str(seed)]
    arguments += [f"--model={address.model}"] if address.model else []
    output, log = await _run(arguments, address.key)
    try:
        outcome = json.loads(output)["scenarios"][0]
    except (ValueError, LookupError):
        lines = log.strip().splitlines() or ["the benchmark wrote no output"]
        return {"failure": lines[-1].removeprefix("llamapool bench: ")}
    return {"failure": outcome["failure"]} if outcome["failure"] else {"figures": outcome["rounds"][0]}


async def _run(arguments: Sequence[str], key: str) -> tuple[str, str]:
    env = {"OPENAI_API_KEY": key, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    async with program(sys.executable, "-m", "server", "bench", *arguments, stderr=PIPE, env=env) as process:
        output, log = await process.communicate()
    return output.decode("utf-8", "replace"), log.decode("utf-8", "replace")
