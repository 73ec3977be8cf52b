"""What is measured together: a unit is a server process of each arm, with certain settings, and what is run on it."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.compare.scenarios import SCENARIOS
from benchmarks.media import run_media
from benchmarks.noise import CALM, Others
from benchmarks.resources import idle_percent, peak_mb, resident_mb
from server.bench.client import ModelClient, Target
from server.bench.scenarios import Figures, Scenario, Setting, run, words_per_word
from tests.support.peer import llama_server
from tests.support.real_server import ROOT, RealServer, free_port, llamapool


@dataclass(frozen=True, slots=True)
class Arm:
    """A program with flags of its own, as one column of the tables."""

    title: str
    program: Literal["llamapool", "peer", "null"]
    flags: tuple[str, ...] = ()


ARMS = {
    "llamapool": Arm("Llamapool", "llamapool"),
    "peer": Arm("llama-server", "peer"),
    "llamapool-plain": Arm("Llamapool without speculation", "llamapool", ("--spec-type", "none")),
    "peer-ngram": Arm("llama-server with n-gram speculation", "peer", ("--spec-type", "ngram-simple")),
    "null": Arm("null server", "null"),
}
SERVERS = ("llamapool", "peer")
"""The arms that goals compare."""
SPECULATION = ("llamapool-plain", "peer-ngram")
YIELDING = {"OMP_WAIT_POLICY": "passive"}  # libgomp's threads sleep at once where they have to wait
START_S = 120.0  # a server that has not answered by then failed
POLL_S = 0.01
IDLE_S = 5.0
N_WARM, N_STEADY = 1_000, 10_000  # requests before the first look at memory, and between that and the second
LIMIT_S = 300.0  # of one request
ATTEMPTS = 3  # at what others disturb
AGAIN = 1_000  # between the seeds of attempts


Kind = Literal["random", "large", "trained"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What all servers are started with."""

    peer: Path  # llama-server
    models: Mapping[Kind, Path]  # without the trained one, what is measured on it is left out
    threads: int
    slots: int
    ctx: int
    scale: float = 1.0
    flags: tuple[str, ...] = ()  # both servers'
    llamapool_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # both servers'
    projector: Path = Path()  # of the random model


@dataclass(frozen=True, slots=True)
class Unit:
    """``names`` are what it measures: scenarios, or figures of the process.

    ``once``: not in every round. ``also``: more arms, with what they measure of it. ``by_itself``: takes minutes, so it
    is measured only where ``--scenario`` names it.
    """

    name: str
    names: tuple[str, ...]
    slots: int = 0  # 0: the machine's
    flags: tuple[str, ...] = ()
    model: Kind = "random"
    once: bool = False
    peer_environment: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = SERVERS
    sees: bool = False  # with the machine's projector
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_itself: bool = False

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.servers, *self.also)

    def measured_by(self, arm: str) -> tuple[str, ...]:
        return self.names if arm in self.servers else self.also.get(arm, ())


_TRAINED = ("real-one", "real-slots", "real-edit", "real-quote", "real-other")
UNITS = (
    Unit(
        "trained",
        ("real-one", "real-slots", "real-constrained", "real-edit", "real-quote", "real-other"),
        model="trained",
        also={**dict.fromkeys(SPECULATION, _TRAINED), "null": ("real-one", "real-slots")},
    ),
    Unit(
        "main",
        ("one", "slots", "prefix", "long", "conversations", "rate", "contended"),
        also={"null": ("rate",)},
    ),
    Unit("rest", ("rest",)),
    Unit("partial", ("partial",)),  # each of these in slots without a history but its own
    Unit("half", ("half",)),
    Unit("left", ("left",)),
    Unit("yielding", ("contended-yielding",), peer_environment=YIELDING),
    Unit("constrained", ("constrained",), model="large"),
    Unit("media", ("media",), sees=True),
    Unit("embeddings", ("embeddings",), flags=("--embeddings", "--pooling", "mean")),
    Unit("inside", ("inside",), once=True, servers=("llamapool",)),
    Unit("context", ("context",), slots=1, once=True, by_itself=True),
    Unit("steady", ("steady",), once=True, by_itself=True),
)
NAMES = tuple(name for unit in UNITS for name in unit.names)
REGULAR = tuple(name for unit in UNITS for name in unit.names if not unit.by_itself)
ONCE = frozenset(name for unit in UNITS for name in unit.names if unit.once)
TITLES = {
    **{scenario.name: scenario.title for scenario in SCENARIOS},
    **{f"real-{s.name}": f"SmolLM2-135M: {s.title}" for s in SCENARIOS},
    "contended-yielding": "the same, with the peer's threads set to yield",
    "rest": "start, idle, and the most memory after a full load",
    "media": "images of 196 tokens",
    "inside": "in one process (`budget`)",
    "steady": "10,000 requests of one token",
}


@contextmanager
def started(server: str, unit: Unit, machine: Machine) -> Iterator[tuple[RealServer, float]]:
    """A server that answers /health, and how many seconds after its process began."""
    began = time.monotonic()
    running = _start(server, unit, machine)
    try:
        running.ready_s, running.poll_s = START_S, POLL_S
        running.wait_until_ready()
        yield running, time.monotonic() - began
    finally:
        running.stop()


def _start(name: str, unit: Unit, machine: Machine) -> RealServer:
    arm = ARMS[name]
    if arm.program == "null":
        port = free_port()
        return RealServer([sys.executable, "-m", "benchmarks.null_server", str(port)], port)
    model, slots = machine.models[unit.model], unit.slots or machine.slots
    flags = ["-c", str(machine.ctx), "-np", str(slots), "-t", str(machine.threads), *machine.flags, *unit.flags]
    flags += ["--mmproj", str(machine.projector)] if unit.sees else []
    flags += arm.flags
    if arm.program == "llamapool":
        return llamapool(model, *flags, *machine.llamapool_flags, environment=machine.environment)
    return llama_server(machine.peer, model, *flags, environment={**machine.environment, **unit.peer_environment})


@dataclass(frozen=True, slots=True)
class Measured:
    """One scenario, or figures of the process. ``others``: their share of the processors meanwhile."""

    name: str
    figures: Figures
    others: float


def measure(
    unit: Unit, wanted: Mapping[str, Collection[str]], seed: int, machine: Machine
) -> Iterator[tuple[str, Measured]]:
    """Start the servers of all arms with something `wanted`, run each scenario on one after the other, and stop them.

    What others have disturbed is measured again, with new prompts, and the calmest counts.
    """
    if unit.name == "inside":
        yield "llamapool", _inside(machine)
        return
    with ExitStack() as up:
        at = {
            server: _Running(*up.enter_context(started(server, unit, machine)), unit, machine)
            for server, names in wanted.items()
            if names
        }
        for name in unit.names:
            for server, running in at.items():
                if name in wanted[server]:
                    yield server, running.calmest(name, seed)


class _Running:
    def __init__(self, server: RealServer, start_s: float, unit: Unit, machine: Machine) -> None:
        self._server, self._start_s, self._once = server, start_s, unit.once
        self._session = ModelClient(Target(server.host, server.port), "bench", limit_s=LIMIT_S)
        self._fit = 1.0 if "--embeddings" in unit.flags else asyncio.run(words_per_word(self._session))
        self._slots, self._scale = unit.slots or machine.slots, machine.scale

    def calmest(self, name: str, seed: int) -> Measured:
        """Measure a scenario, or figures of the process, until others leave it alone."""
        seen: list[Measured] = []
        while not seen or (seen[-1].others > CALM and len(seen) < ATTEMPTS and name not in _OWN and not self._once):
            setting = Setting(seed + AGAIN * len(seen), self._slots, self._scale, self._fit)
            others = Others(self._server.process.pid)
            own = _OWN.get(name)
            if own is not None:
                figures = own(self._server, self._session, setting, self._start_s)
            else:
                figures = run(named_scenario(name), self._session, setting)
            seen.append(Measured(name, figures, others.share()))
        return min(seen, key=lambda measured: measured.others)


def _inside(machine: Machine) -> Measured:
    others = Others()
    command = [sys.executable, "-m", "benchmarks.budget", "--slots", str(machine.slots), "--figures"]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Measured("inside", json.loads(found.stdout), others.share())


def named_scenario(name: str) -> Scenario:
    wanted = name.removeprefix("real-").removesuffix("-yielding")
    return next(scenario for scenario in SCENARIOS if scenario.name == wanted)


def _rest(running: RealServer, session: ModelClient, setting: Setting, start_s: float) -> Figures:
    """Of a process that has answered one request, and after the load of three scenarios."""
    idle = idle_percent(running.process.pid, IDLE_S)
    for name in ("one", "slots", "rate"):
        run(named_scenario(name), session, setting)
    return {"start s": start_s, "idle CPU %": idle, "peak MB": peak_mb(running.process.pid)}


def _steady(running: RealServer, session: ModelClient, setting: Setting, _start_s: float) -> Figures:
    """Memory after many requests, beside that after some."""
    _many(session, setting, N_WARM)
    before = resident_mb(running.process.pid)
    _many(session, setting, N_STEADY)
    return {"resident MB": before, "growth MB": resident_mb(running.process.pid) - before}


def _many(session: ModelClient, setting: Setting, n_requests: int) -> None:
    rate = named_scenario("rate")
    per_run = 240  # requests of the scenario at full scale
    for number in range(max(1, round(n_requests * setting.scale / per_run))):
        run(rate, session, Setting(setting.seed * 1_000_003 + number, setting.n_parallel, 1.0, setting.fit))


def _media(_running: RealServer, session: ModelClient, setting: Setting, _start_s: float) -> Figures:
    return run_media(session, setting)


_OWN: dict[str, Callable[[RealServer, ModelClient, Setting, float], Figures]] = {
    "rest": _rest,
    "steady": _steady,
    "media": _media,
}
