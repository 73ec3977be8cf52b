"""What a real server does when the machine fails it. ``make chaos``; docs/reliability.md has the table.

Each test brings one fault on a running server, and asks afterwards what is promised: an error that says what is wrong
to whom it concerns, nothing to the others, and, once the fault is gone, all as before. No test waits by the clock.
"""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.real_server import RealServer, Reply, llamapool_config
from tests.support.stand_in_hub import stand_in_hub
from tests.support.waiting import wait_until

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo.gguf"
CHAT = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 12, "temperature": 0}
LONG = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 400, "ignore_eos": True}
ISOLATED = {"isolation": "process"}
WITHIN_S = 120.0


@contextmanager
def serving(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RealServer]:
    file = folder / "config.yaml"
    settings = {"host": "127.0.0.1", "models_cache": False, **(server or {})}
    written = {
        "server": settings,
        "defaults": dict(defaults or {}),
        "models": {name: dict(m) for name, m in models.items()},
    }
    file.write_text(yaml.safe_dump(written))
    with llamapool_config(file, environment=environment) as running:
        yield running


def copied(folder: Path, name: str) -> Path:
    """The demo model under a name of its own."""
    return Path(shutil.copy(DEMO, folder / f"{name}.gguf"))


def two(folder: Path, **of_b: Any) -> dict[str, dict[str, Any]]:
    """ "a" is there from the start, "b" is loaded when it is asked for."""
    common = {"n_ctx": 2048, "n_parallel": 2}
    return {
        "a": {"path": str(copied(folder, "a")), "load": "startup", **common},
        "b": {"path": str(copied(folder, "b")), "load": "on_demand", **common, **of_b},
    }


def chat(server: RealServer, model: str, **more: Any) -> Reply:
    return server.request("POST", "/v1/chat/completions", {"model": model, **CHAT, **more})


def well(server: RealServer, *models: str) -> None:
    """These answer, and the server says that it is well."""
    for model in models:
        reply = chat(server, model)
        assert reply.status == 200, reply
        assert reply.json()["choices"][0]["message"]["content"]
    assert server.request("GET", "/health").status == 200
    assert server.request("GET", "/livez").status == 200


def children(server: RealServer) -> list[int]:
    """Processes of the server, also those of its processes."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[0] != "Z":
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [server.process.pid]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


# ---- files of models


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with serving(tmp_path, two(tmp_path)) as server:
        moved = (tmp_path / "b.gguf").rename(tmp_path / "away.gguf")
        reply = chat(server, "b")
        assert reply.status == 503, reply
        assert "does not exist" in reply.json()["error"]["message"]
        well(server, "a")
        moved.rename(tmp_path / "b.gguf")
        wait_until(lambda: chat(server, "b").status == 200, "a model whose file is back doesn't load")
        (tmp_path / "a.gguf").unlink()  # it is mapped: who has it goes on
        well(server, "a", "b")


@pytest.mark.parametrize("n_kept", [0, 10, 5_000, -4096])
def test_a_truncated_file(tmp_path: Path, n_kept: int) -> None:
    with serving(tmp_path, two(tmp_path)) as server:
        content = (tmp_path / "b.gguf").read_bytes()
        (tmp_path / "b.gguf").write_bytes(content[:n_kept])
        reply = chat(server, "b")
        assert reply.status == 503, reply
        well(server, "a")
        (tmp_path / "b.gguf").write_bytes(content)
        wait_until(lambda: chat(server, "b").status == 200, "a model whose file is whole again doesn't load")


# ---- processes


def test_a_models_own_process_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, two(tmp_path, isolation="process", load="startup")) as server:
        well(server, "a", "b")
        before = children(server)
        with (
            ThreadPoolExecutor() as clients,
            server.open_stream("/v1/chat/completions", {"model": "a", **LONG}) as other,
        ):
            asking = clients.submit(chat, server, "b", **LONG)
            for pid in _those_of(before, "b"):
                os.kill(pid, signal.SIGKILL)
            asking.result(WITHIN_S)
            assert b"[DONE]" in other.read()
        wait_until(lambda: chat(server, "b").status == 200, "a model whose process was killed is not loaded again")
        well(server, "a", "b")


def _those_of(pids: list[int], model: str) -> list[int]:
    """The processes that have a model's file mapped."""
    return [pid for pid in pids if f"/{model}.gguf" in Path(f"/proc/{pid}/maps").read_text()]


def test_processes_that_render_templates_are_killed(tmp_path: Path) -> None:
    with serving(tmp_path, two(tmp_path)) as server:
        well(server, "a")
        for _ in range(3):
            for pid in children(server):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: chat(server, "a").status == 200, "templates are not rendered again")
        well(server, "a", "b")


# ---- memory


def test_a_model_that_memory_does_not_hold(tmp_path: Path) -> None:
    with serving(tmp_path, two(tmp_path, n_ctx=200_000, n_parallel=64)) as server:
        well(server, "a")
        used = _mapped(server.process.pid)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
        reply = chat(server, "b")
        assert reply.status == 503, reply
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        well(server, "a")


def test_a_models_process_for_which_the_system_has_no_memory(tmp_path: Path) -> None:
    large = {"n_ctx": 200_000, "n_parallel": 64, "fit": "off"}
    with group() as (join, limit), serving(tmp_path, two(tmp_path, **large), defaults=ISOLATED) as server:
        well(server, "a")
        for pid in (server.process.pid, *children(server)):
            join(pid)
        limit(300 << 20)
        reply = chat(server, "b")
        assert reply.status == 503, reply
        assert "SIGKILL" in reply.json()["error"]["message"]
        well(server, "a")
        limit(64 << 30)
        wait_until(lambda: chat(server, "b").status == 200, "with memory again, the model doesn't load")
        well(server, "a", "b")


@contextmanager
def group() -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
    """A cgroup: puts a process in, and sets the bytes that all in it may take. Skips where none can be made."""
    new = [at for at in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if (at / "cgroup.procs").exists()]
    if not new or not os.access(new[0] / "cgroup.procs", os.W_OK):
        pytest.skip("no cgroup can be made here")
    at = new[0] / f"llamapool-chaos-{os.getpid()}"
    at.mkdir()
    limits = [file for name in ("memory.limit_in_bytes", "memory.max") if (file := at / name).exists()]
    try:
        if not limits:
            pytest.skip("a cgroup here has no limit of memory")
        yield lambda pid: (at / "cgroup.procs").write_text(str(pid)), lambda n: limits[0].write_text(str(n))
    finally:
        wait_until(lambda: not (at / "cgroup.procs").read_text(), "its processes have not ended")
        at.rmdir()


def _mapped(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


# ---- descriptors


def test_no_descriptors_are_left(tmp_path: Path) -> None:
    with serving(tmp_path, two(tmp_path)) as server:
        well(server, "a")
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        in_use = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 1, hard))

        def ask(_: int) -> int:
            try:
                return chat(server, "b").status
            except OSError:  # it could not be accepted
                return 0

        with ThreadPoolExecutor() as clients:
            asked = clients.map(ask, range(4), timeout=WITHIN_S)
            wait_until(lambda: "Too many open files" in server.log_tail(100_000), "there were descriptors")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            assert set(asked) <= {0, 200, 503}
        wait_until(lambda: chat(server, "b").status == 200, "with descriptors again, the model doesn't load")
        well(server, "a", "b")


# ---- the disk and the clock, by a library in front of the system's


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("library") / "system.so"
    source = Path(__file__).with_name("system.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@contextmanager
def chaotic(
    folder: Path, library: Path, models: Mapping[str, Mapping[str, Any]], **server: Any
) -> Iterator[tuple[RealServer, Callable[[str, int], None]]]:
    """A server, and what brings a fault on it: ``bring("full", 1)``; 0 takes it away."""
    faults, disk = folder / "faults", folder / "disk"
    faults.mkdir()
    (disk / "slots").mkdir(parents=True)

    def bring(what: str, value: int) -> None:
        part = faults / "part"
        part.write_text(str(value))
        part.replace(faults / what)

    environment = {"LD_PRELOAD": str(library), "CHAOS": str(faults), "CHAOS_DISK": str(disk)}
    with serving(folder, models, server, environment=environment) as running:
        yield running, bring


def test_a_full_disk(tmp_path: Path, library: Path) -> None:
    slots, cache = tmp_path / "disk" / "slots", tmp_path / "disk" / "cache"
    models = {"a": two(tmp_path, cache_disk=100, cache_disk_path=str(cache))["a"]}
    with chaotic(tmp_path, library, models, slot_save_path=str(slots)) as (server, bring):
        well(server, "a")
        bring("full", 1)
        reply = server.request("POST", "/slots/0?action=save", {"filename": "one"})
        assert reply.status in (500, 503, 507), reply
        assert "space" in reply.body.decode().lower(), reply
        assert list(slots.rglob("*one*")) == [], "a part of a file is left"
        for number in range(4):  # more prompts than slots: states leave their cells
            assert chat(server, "a", messages=[{"role": "user", "content": f"{number} " * 300}]).status == 200
        well(server, "a")
        bring("full", 0)
        assert server.request("POST", "/slots/0?action=save", {"filename": "one"}).status == 200
        well(server, "a")


def test_a_slow_disk(tmp_path: Path, library: Path) -> None:
    """A stream goes on while a slot is written that takes seconds."""
    slots = tmp_path / "disk" / "slots"
    with chaotic(tmp_path, library, {"a": two(tmp_path)["a"]}, slot_save_path=str(slots)) as (server, bring):
        well(server, "a")
        bring("slow", 3000)
        with ThreadPoolExecutor() as clients:
            saving = clients.submit(server.request, "POST", "/slots/0?action=save", {"filename": "one"})
            for _ in range(3):
                assert chat(server, "a", id_slot=1).status == 200
            assert not saving.done(), "the disk was not slow"
            assert server.request("GET", "/health").status == 200
            bring("slow", 0)
            assert saving.result(WITHIN_S).status == 200
        well(server, "a")


@pytest.mark.parametrize("seconds", [86_400 * 400, -86_400 * 400])
def test_a_clock_that_jumps(tmp_path: Path, library: Path, seconds: int) -> None:
    """By a year, forth and back: streams go on, limits and time limits keep counting."""
    limits = {"queue_timeout_s": 60, "request_timeout_s": 100}
    with chaotic(tmp_path, library, {"a": {**two(tmp_path)["a"], **limits}}, watchdog_s=60) as (server, bring):
        well(server, "a")
        with server.open_stream("/v1/chat/completions", {"model": "a", **LONG}) as stream:
            bring("clock", seconds)
            created = chat(server, "a").json()["created"]
            assert abs(created - time.time() - seconds) < WITHIN_S, "the clock did not jump"
            assert b"[DONE]" in stream.read()
        well(server, "a")
        bring("clock", 0)
        well(server, "a")


# ---- the hub


def test_a_hub_that_is_down(tmp_path: Path) -> None:
    models = two(tmp_path)
    models["c"] = {"hf": "someone/something", "hf_file": "c.gguf", "load": "on_demand"}
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "LLAMA_CACHE": str(tmp_path / "cache")}
    with serving(tmp_path, models, environment=nowhere) as server:
        well(server, "a")
        reply = chat(server, "c")
        assert reply.status in (502, 503), reply
        well(server, "a", "b")


def test_a_hub_that_says_nothing(tmp_path: Path) -> None:
    models = two(tmp_path)
    models["c"] = {"hf": "someone/something", "hf_file": "c.gguf", "load": "on_demand"}
    with stand_in_hub() as stand_in:
        stand_in.silent = "/"
        endpoint = {"HF_ENDPOINT": stand_in.url, "LLAMA_CACHE": str(tmp_path / "cache")}
        with serving(tmp_path, models, environment=endpoint) as server:
            asking = threading.Thread(target=chat, args=(server, "c"), daemon=True)
            asking.start()
            well(server, "a", "b")
            stand_in.ended.set()
            asking.join(WITHIN_S)
            well(server, "a")
