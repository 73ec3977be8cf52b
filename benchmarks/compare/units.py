"""The units of the comparison: a server process of each arm with common settings, and the scenarios that run on it."""

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
    """A program with its flags: one column of the tables."""

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
YIELDING = {"OMP_WAIT_POLICY": "passive"}  # libgomp's threads sleep immediately when they wait
START_S = 120.0  # the time limit for the start of a server
POLL_S = 0.01
IDLE_S = 5.0
N_WARM, N_STEADY = 1_000, 10_000  # requests before the first measurement of memory, and between it and the second
LIMIT_S = 300.0  # time limit of a request
ATTEMPTS = 3  # if other processes use the CPU
SEED_STEP = 1_000  # between the seeds of attempts


Kind = Literal["random", "large", "trained"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The settings of all servers."""

    peer: Path  # llama-server
    models: Mapping[Kind, Path]  # without "trained", its scenarios are skipped
    threads: int
    slots: int
    ctx: int
    scale: float = 1.0
    flags: tuple[str, ...] = ()  # of both servers
    llamapool_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # of both servers
    projector: Path = Path()  # for the random model


@dataclass(frozen=True, slots=True)
class Unit:
    """Scenarios, or figures of the process (``names``), that share server processes.

    ``once``: not in every round. ``also``: scenarios by additional arm. ``by_itself``: takes minutes, so it runs only
    if ``--scenario`` names it. ``media``: servers get the machine's projector. ``slots``: 0 = the machine's.
    """

    name: str
    names: tuple[str, ...]
    slots: int = 0
    flags: tuple[str, ...] = ()
    model: Kind = "random"
    once: bool = False
    peer_environment: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = SERVERS
    media: bool = False
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
    Unit("partial", ("partial",)),  # this unit and the next two need new slots
    Unit("half", ("half",)),
    Unit("left", ("left",)),
    Unit("yielding", ("contended-yielding",), peer_environment=YIELDING),
    Unit("constrained", ("constrained",), model="large"),
    Unit("media", ("media",), media=True),
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
    """Start a server and wait until /health succeeds. Yields it and the seconds that it took."""
    start = time.monotonic()
    process = _start(server, unit, machine)
    try:
        process.ready_s, process.poll_s = START_S, POLL_S
        process.wait_until_ready()
        yield process, time.monotonic() - start
    finally:
        process.stop()


def _start(name: str, unit: Unit, machine: Machine) -> RealServer:
    arm = ARMS[name]
    if arm.program == "null":
        port = free_port()
        return RealServer([sys.executable, "-m", "benchmarks.null_server", str(port)], port)
    model, slots = machine.models[unit.model], unit.slots or machine.slots
    flags = ["-c", str(machine.ctx), "-np", str(slots), "-t", str(machine.threads), *machine.flags, *unit.flags]
    flags += ["--mmproj", str(machine.projector)] if unit.media else []
    flags += arm.flags
    if arm.program == "llamapool":
        return llamapool(model, *flags, *machine.llamapool_flags, environment=machine.environment)
    return llama_server(machine.peer, model, *flags, environment={**machine.environment, **unit.peer_environment})


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a scenario. ``others``: the CPU share of other processes meanwhile."""

    name: str
    figures: Figures
    others: float


def measure(
    unit: Unit, scenarios: Mapping[str, Collection[str]], seed: int, machine: Machine
) -> Iterator[tuple[str, Measured]]:
    """Start the servers with `scenarios`, run each scenario on one server after the other, and stop the servers.

    If other processes use the CPU, a scenario is repeated with new prompts. The attempt with the least of it counts.
    """
    if unit.name == "inside":
        yield "llamapool", _inside(machine)
        return
    with ExitStack() as stack:
        running = {
            server: _Running(*stack.enter_context(started(server, unit, machine)), unit, machine)
            for server, names in scenarios.items()
            if names
        }
        for name in unit.names:
            for server, process in running.items():
                if name in scenarios[server]:
                    yield server, process.measure(name, seed)


class _Running:
    def __init__(self, server: RealServer, start_s: float, unit: Unit, machine: Machine) -> None:
        self._server, self._start_s, self._once = server, start_s, unit.once
        self._session = ModelClient(Target(server.host, server.port), "bench", limit_s=LIMIT_S)
        self._fit = 1.0 if "--embeddings" in unit.flags else asyncio.run(words_per_word(self._session))
        self._slots, self._scale = unit.slots or machine.slots, machine.scale

    def measure(self, name: str, seed: int) -> Measured:
        """Measure a scenario until other processes use little CPU time. Returns the attempt with the least of it."""
        attempts: list[Measured] = []
        while not attempts or (
            attempts[-1].others > CALM and len(attempts) < ATTEMPTS and name not in _OWN and not self._once
        ):
            setting = Setting(seed + SEED_STEP * len(attempts), self._slots, self._scale, self._fit)
            others = Others(self._server.process.pid)
            own = _OWN.get(name)
            if own is not None:
                figures = own(self._server, self._session, setting, self._start_s)
            else:
                figures = run(named_scenario(name), self._session, setting)
            attempts.append(Measured(name, figures, others.share()))
        return min(attempts, key=lambda measured: measured.others)


def _inside(machine: Machine) -> Measured:
    others = Others()
    command = [sys.executable, "-m", "benchmarks.budget", "--slots", str(machine.slots), "--figures"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Measured("inside", json.loads(done.stdout), others.share())


def named_scenario(name: str) -> Scenario:
    base_name = name.removeprefix("real-").removesuffix("-yielding")
    return next(scenario for scenario in SCENARIOS if scenario.name == base_name)


def _rest(running: RealServer, session: ModelClient, setting: Setting, start_s: float) -> Figures:
    """Measure the start and the idle CPU share after one request, and the peak memory after three scenarios."""
    idle = idle_percent(running.process.pid, IDLE_S)
    for name in ("one", "slots", "rate"):
        run(named_scenario(name), session, setting)
    return {"start s": start_s, "idle CPU %": idle, "peak MB": peak_mb(running.process.pid)}


def _steady(running: RealServer, session: ModelClient, setting: Setting, _start_s: float) -> Figures:
    """Measure the memory after `N_WARM` requests and its growth by `N_STEADY` more."""
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
