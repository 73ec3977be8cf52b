"""Faults of files, processes, memory, descriptors, disk, clock and hub on a real server. Run by ``make chaos``.

Each test injects one fault. Affected requests get an error with its cause, other requests succeed, and everything works
again after the fault. docs/reliability.md has the table of guarantees. No test waits for a fixed time.
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

from tests.support.fake_hub import fake_hub
from tests.support.real_server import RealServer, Reply, llamapool_config
from tests.support.waiting import wait_until

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo.gguf"
CHAT = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 12, "temperature": 0}
LONG = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 400, "ignore_eos": True}
ISOLATED = {"isolation": "process"}
TIMEOUT_S = 120.0


@contextmanager
def serving(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RealServer]:
    """Run a server with these sections of a configuration file."""
    file = folder / "config.yaml"
    settings = {
        "server": {"host": "127.0.0.1", "models_cache": False, **(server or {})},
        "defaults": dict(defaults or {}),
        "models": {name: dict(fields) for name, fields in models.items()},
    }
    file.write_text(yaml.safe_dump(settings))
    with llamapool_config(file, environment=environment) as running:
        yield running


def model(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    """Copy the demo model. Return the settings of the copy, which loads at startup by default."""
    path = shutil.copy(DEMO, folder / f"{name}.gguf")
    return {"path": str(path), "load": "startup", "n_ctx": 2048, "n_parallel": 2, **fields}


def two_models(folder: Path, **fields_of_b: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of "a", which loads at startup, and "b", which loads on demand by default."""
    return {"a": model(folder, "a"), "b": model(folder, "b", **{"load": "on_demand", **fields_of_b})}


def chat(server: RealServer, model: str, **fields: Any) -> Reply:
    return server.request("POST", "/v1/chat/completions", {"model": model, **CHAT, **fields})


def wait_until_served(server: RealServer, model: str, failure: str) -> None:
    wait_until(lambda: chat(server, model).status == 200, failure)


def check_serving(server: RealServer, *models: str) -> None:
    """Assert that `models` reply and that the server reports that it is healthy."""
    for model in models:
        reply = chat(server, model)
        assert reply.status == 200, reply
        assert reply.json()["choices"][0]["message"]["content"]
    assert server.request("GET", "/health").status == 200
    assert server.request("GET", "/livez").status == 200


def children(server: RealServer) -> list[int]:
    """Return the process ids of all descendants of the server."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[0] != "Z":
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    pids = [server.process.pid]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids[1:]


# ---- model files


def test_missing_model_file(tmp_path: Path) -> None:
    with serving(tmp_path, two_models(tmp_path)) as server:
        moved = (tmp_path / "b.gguf").rename(tmp_path / "away.gguf")
        reply = chat(server, "b")
        assert reply.status == 503, reply
        assert "does not exist" in reply.json()["error"]["message"]
        check_serving(server, "a")
        moved.rename(tmp_path / "b.gguf")
        wait_until_served(server, "b", "the model does not load after its file is back")
        (tmp_path / "a.gguf").unlink()  # the loaded model keeps its mapping
        check_serving(server, "a", "b")


@pytest.mark.parametrize("n_bytes", [0, 10, 5_000, -4096])
def test_truncated_model_file(tmp_path: Path, n_bytes: int) -> None:
    with serving(tmp_path, two_models(tmp_path)) as server:
        content = (tmp_path / "b.gguf").read_bytes()
        (tmp_path / "b.gguf").write_bytes(content[:n_bytes])
        reply = chat(server, "b")
        assert reply.status == 503, reply
        check_serving(server, "a")
        (tmp_path / "b.gguf").write_bytes(content)
        wait_until_served(server, "b", "the model does not load after its file is complete again")


# ---- processes


def test_killed_process_of_an_isolated_model(tmp_path: Path) -> None:
    with serving(tmp_path, two_models(tmp_path, isolation="process", load="startup")) as server:
        check_serving(server, "a", "b")
        before = children(server)
        with (
            ThreadPoolExecutor() as clients,
            server.open_stream("/v1/chat/completions", {"model": "a", **LONG}) as other,
        ):
            request = clients.submit(chat, server, "b", **LONG)
            for pid in _with_mapped_file(before, "b"):
                os.kill(pid, signal.SIGKILL)
            request.result(TIMEOUT_S)
            assert b"[DONE]" in other.read()
        wait_until_served(server, "b", "the model does not load again after its process was killed")
        check_serving(server, "a", "b")


def _with_mapped_file(pids: list[int], model: str) -> list[int]:
    """Return the processes that have mapped the file of `model`."""
    return [pid for pid in pids if f"/{model}.gguf" in Path(f"/proc/{pid}/maps").read_text()]


def test_killed_template_sandboxes(tmp_path: Path) -> None:
    with serving(tmp_path, two_models(tmp_path)) as server:
        check_serving(server, "a")
        for _ in range(3):
            for pid in children(server):
                os.kill(pid, signal.SIGKILL)
            wait_until_served(server, "a", "templates are not rendered after their sandboxes were killed")
        check_serving(server, "a", "b")


# ---- memory


def test_model_larger_than_the_address_space_limit(tmp_path: Path) -> None:
    with serving(tmp_path, two_models(tmp_path, n_ctx=200_000, n_parallel=64)) as server:
        check_serving(server, "a")
        used = _mapped_bytes(server.process.pid)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
        reply = chat(server, "b")
        assert reply.status == 503, reply
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        check_serving(server, "a")


def test_isolated_model_killed_by_the_cgroup_memory_limit(tmp_path: Path) -> None:
    large = {"n_ctx": 200_000, "n_parallel": 64, "fit": "off"}
    with (
        memory_cgroup() as (add, set_limit),
        serving(tmp_path, two_models(tmp_path, **large), defaults=ISOLATED) as server,
    ):
        check_serving(server, "a")
        for pid in (server.process.pid, *children(server)):
            add(pid)
        set_limit(300 << 20)
        reply = chat(server, "b")
        assert reply.status == 503, reply
        assert "SIGKILL" in reply.json()["error"]["message"]
        check_serving(server, "a")
        set_limit(64 << 30)
        wait_until_served(server, "b", "the model does not load after the limit is lifted")
        check_serving(server, "a", "b")


@contextmanager
def memory_cgroup() -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
    """Create a cgroup. Yield functions that add a process and set the limit in bytes. Skip if neither is possible."""
    roots = [
        root for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if (root / "cgroup.procs").exists()
    ]
    if not roots or not os.access(roots[0] / "cgroup.procs", os.W_OK):
        pytest.skip("cannot create a cgroup")
    group = roots[0] / f"llamapool-chaos-{os.getpid()}"
    group.mkdir()
    limits = [file for name in ("memory.limit_in_bytes", "memory.max") if (file := group / name).exists()]
    try:
        if not limits:
            pytest.skip("cgroups have no memory limit")
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid)), lambda n: limits[0].write_text(str(n))
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the processes of the cgroup have not ended")
        group.rmdir()


def _mapped_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


# ---- descriptors


def test_no_free_file_descriptors(tmp_path: Path) -> None:
    with serving(tmp_path, two_models(tmp_path)) as server:
        check_serving(server, "a")
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        in_use = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 1, hard))

        def status(_: int) -> int:
            try:
                return chat(server, "b").status
            except OSError:  # the server could not accept the connection
                return 0

        with ThreadPoolExecutor() as clients:
            statuses = clients.map(status, range(4), timeout=TIMEOUT_S)
            wait_until(lambda: "Too many open files" in server.log_tail(100_000), "descriptors did not run out")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            assert set(statuses) <= {0, 200, 503}
        wait_until_served(server, "b", "the model does not load after descriptors are free again")
        check_serving(server, "a", "b")


# ---- disk and clock, by a preloaded library (system.c)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = tmp_path_factory.mktemp("library") / "system.so"
    source = Path(__file__).with_name("system.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True)
    return built


@contextmanager
def serving_with_faults(
    folder: Path, library: Path, settings: Mapping[str, Any], **server: Any
) -> Iterator[tuple[RealServer, Callable[[str, int], None]]]:
    """Serve the model "a". Yield the server and a function that injects a fault: ``inject("full", 1)``; 0 ends it."""
    faults, disk = folder / "faults", folder / "disk"
    faults.mkdir()
    (disk / "slots").mkdir(parents=True)

    def inject(fault: str, value: int) -> None:
        part = faults / "part"
        part.write_text(str(value))
        part.replace(faults / fault)

    environment = {"LD_PRELOAD": str(library), "CHAOS": str(faults), "CHAOS_DISK": str(disk)}
    with serving(folder, {"a": settings}, server, environment=environment) as running:
        yield running, inject


def test_full_disk(tmp_path: Path, library: Path) -> None:
    slots, cache = tmp_path / "disk" / "slots", tmp_path / "disk" / "cache"
    one = model(tmp_path, "a", cache_disk=100, cache_disk_path=str(cache))
    with serving_with_faults(tmp_path, library, one, slot_save_path=str(slots)) as (server, inject):
        check_serving(server, "a")
        inject("full", 1)
        reply = server.request("POST", "/slots/0?action=save", {"filename": "one"})
        assert reply.status in (500, 503, 507), reply
        assert "space" in reply.body.decode().lower(), reply
        assert list(slots.rglob("*one*")) == [], "a partial file is left"
        for number in range(4):  # more prompts than slots, so that states are offloaded to disk
            assert chat(server, "a", messages=[{"role": "user", "content": f"{number} " * 300}]).status == 200
        check_serving(server, "a")
        inject("full", 0)
        assert server.request("POST", "/slots/0?action=save", {"filename": "one"}).status == 200
        check_serving(server, "a")


def test_requests_are_served_while_a_slow_disk_saves_a_slot(tmp_path: Path, library: Path) -> None:
    slots = tmp_path / "disk" / "slots"
    one = model(tmp_path, "a")
    with serving_with_faults(tmp_path, library, one, slot_save_path=str(slots)) as (server, inject):
        check_serving(server, "a")
        inject("slow", 3000)
        with ThreadPoolExecutor() as clients:
            saving = clients.submit(server.request, "POST", "/slots/0?action=save", {"filename": "one"})
            for _ in range(3):
                assert chat(server, "a", id_slot=1).status == 200
            assert not saving.done(), "the disk was not slow"
            assert server.request("GET", "/health").status == 200
            inject("slow", 0)
            assert saving.result(TIMEOUT_S).status == 200
        check_serving(server, "a")


@pytest.mark.parametrize("seconds", [86_400 * 400, -86_400 * 400])
def test_jump_of_the_wall_clock_by_a_year(tmp_path: Path, library: Path, seconds: int) -> None:
    """Streams and timeouts must not depend on the wall clock."""
    one = model(tmp_path, "a", queue_timeout_s=60, request_timeout_s=100)
    with serving_with_faults(tmp_path, library, one, watchdog_s=60) as (server, inject):
        check_serving(server, "a")
        with server.open_stream("/v1/chat/completions", {"model": "a", **LONG}) as stream:
            inject("clock", seconds)
            created = chat(server, "a").json()["created"]
            assert abs(created - time.time() - seconds) < TIMEOUT_S, "the clock did not jump"
            assert b"[DONE]" in stream.read()
        check_serving(server, "a")
        inject("clock", 0)
        check_serving(server, "a")


# ---- the hub

HUB_MODEL = {"hf": "someone/something", "hf_file": "c.gguf", "load": "on_demand"}


def test_unreachable_hub(tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "LLAMA_CACHE": str(tmp_path / "cache")}
    with serving(tmp_path, {**two_models(tmp_path), "c": HUB_MODEL}, environment=environment) as server:
        check_serving(server, "a")
        reply = chat(server, "c")
        assert reply.status in (502, 503), reply
        check_serving(server, "a", "b")


def test_silent_hub(tmp_path: Path) -> None:
    with fake_hub() as hub:
        hub.silent = "/"
        environment = {"HF_ENDPOINT": hub.url, "LLAMA_CACHE": str(tmp_path / "cache")}
        with serving(tmp_path, {**two_models(tmp_path), "c": HUB_MODEL}, environment=environment) as server:
            request = threading.Thread(target=chat, args=(server, "c"), daemon=True)
            request.start()
            check_serving(server, "a", "b")
            hub.ended.set()
            request.join(TIMEOUT_S)
            check_serving(server, "a")
