"""What operators do to a real server, with native weights: swap and sleep under load, several instances, SIGTERM while
streams run, a full disk, too little memory, systemd, CPUs of its own; what usage says.
"""

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.engine.instances import bind
from server.engine.params import EngineParams
from server.engine.runner_api import BatchEntry
from server.errors import ModelFailed
from server.llama.threads import ComputeThreads, bound
from server.pool.spec import LoadParams, ModelSpec, ThreadPlacement
from server.transport.keys import add_entry, hash_of, new_key
from tests.model.native_fixtures import engine_on, load
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import EXACT, ROOT, RealServer, free_port, llamapool, llamapool_config
from tests.support.waiting import wait_until
from tests.unit.engine.builders import request, run

FLAGS = ("-c", "4096", "-np", "4", "-t", "1", *EXACT)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("gguf"), TinyModel())


def ask(server: RealServer, n: int, model: str | None = None, max_tokens: int = 24) -> str:
    body: dict[str, Any] = {"prompt": f"Number {n} of many.", "max_tokens": max_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "model": model} if model else {"ignore_eos": True}
    text: str = server.post("/v1/completions", body)["choices"][0]["text"]
    return text


def config_file(folder: Path, path: Path, **server: object) -> Path:
    models = {name: {"path": str(path), "n_ctx": 512, "n_parallel": 2, "n_threads": 1} for name in "abc"}
    file = folder / "models.yaml"
    file.write_text(json.dumps({"server": {"host": "127.0.0.1", **server}, "models": models}))
    return file


def test_models_change_places_under_load(tiny: Path, tmp_path: Path) -> None:
    with llamapool_config(config_file(tmp_path, tiny, models_max=2)) as server, ThreadPoolExecutor(6) as pool:
        jobs = [(n, "abc"[n % 3]) for n in range(24)]
        texts = list(pool.map(lambda job: ask(server, job[0] % 4, job[1], 8), jobs))
        assert [len({texts[i] for i, (n, _) in enumerate(jobs) if n % 4 == k}) for k in range(4)] == [1, 1, 1, 1]
        states = [one["status"]["value"] for one in server.get("/models")["data"]]
        assert states.count("loaded") <= 2


def test_a_model_sleeps_and_wakes_under_load(tiny: Path) -> None:
    with llamapool(tiny, *FLAGS, "--sleep-idle-seconds", "1") as server:
        expected = ask(server, 1)
        for _ in range(2):
            while not server.get("/props").get("is_sleeping"):
                pass
            with ThreadPoolExecutor(8) as pool:
                assert set(pool.map(lambda _: ask(server, 1), range(8))) == {expected}


@pytest.fixture
def streaming(tiny: Path) -> Iterator[tuple[RealServer, list[bytes], threading.Thread]]:
    """A server whose stream has begun, what of it has come, and the thread that reads it to its end."""
    server = llamapool(tiny, "-c", "32768", "-np", "1", "-t", "1", "--drain-s", "60")
    server.wait_until_ready()
    lines: list[bytes] = []
    begun = threading.Event()

    def read() -> None:
        body = {"prompt": "on and on", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
        with server.open_stream("/v1/completions", body) as response:
            begun.set()
            while line := response.readline():
                lines.append(line)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60)
    yield server, lines, thread
    thread.join(60)
    server.stop()


def test_sigterm_lets_streams_end_and_the_status_is_zero(
    streaming: tuple[RealServer, list[bytes], threading.Thread],
) -> None:
    server, lines, thread = streaming
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0
    thread.join(60)
    assert lines[-2:] == [b"data: [DONE]\n", b"\n"]


def test_a_crash_of_native_code_leaves_the_stacks_of_all_threads(tiny: Path) -> None:
    server = llamapool(tiny, *FLAGS)
    server.ends_with = -signal.SIGSEGV
    with server:
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(60) == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in server.log_tail(100_000)
        assert "/server/engine/loop.py" in server.log_tail(100_000)


def test_too_little_memory_for_caches_costs_caches_only(tmp_path: Path) -> None:
    deep = gguf_file(tmp_path, TinyModel(n_layer=12, n_embd=256, n_head_kv=4))  # so that a state has 24 megabytes
    with llamapool(deep, "-c", "2048", "-np", "2", "-t", "1", "--cache-ram", "100000", *EXACT) as server:
        prompts = [[300 + (i * step) % 97 for i in range(1000)] for step in range(2, 8)]

        def answer(prompt: list[int]) -> list[int]:
            body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": True, "return_tokens": True}
            found: list[int] = server.post("/completion", body)["tokens"]
            return found

        first = answer(prompts[0])
        used = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
        for prompt in prompts[1:]:
            assert len(answer(prompt)) == 4
        assert answer(prompts[0]) == first
        assert "could not be kept: there is no memory" in server.log.read_text()
        assert server.request("GET", "/readyz").status == 200


DEMO = ROOT / "models" / "demo.gguf"
DEADLINE_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}


def wait_written(path: Path, n_requests: int) -> None:
    """Wait until the file has this many requests, as another process sees it."""

    def written() -> bool:
        with sqlite3.connect(path) as connection:
            found = connection.execute("SELECT sum(requests) FROM token_usage").fetchone()
            return bool(found[0] == n_requests)

    wait_until(written, "the usage in the file")


def test_usage_survives_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    flags = ("--state", str(state), "-c", "512", "-np", "1", "-t", "1", "--no-warmup")
    with llamapool(DEMO, *flags) as server:
        server.ends_with = -signal.SIGKILL
        usage = server.post("/v1/chat/completions", CHAT)["usage"]
        wait_written(state, 1)
        server.process.kill()
        server.process.wait(DEADLINE_S)
    with llamapool(DEMO, *flags) as server:
        (row,) = server.get("/v1/usage")["data"]
        assert (row["requests"], row["prompt_tokens"]) == (1, usage["prompt_tokens"])
        assert row["completion_tokens"] == usage["completion_tokens"]
        server.post("/v1/chat/completions", CHAT)
        assert server.get("/v1/usage")["data"][0]["requests"] == 2


UNIT = ROOT / "deploy/systemd/llamapool.service"


def words_of(text: str, name: str) -> list[str]:
    return [word for line in re.findall(rf"^{name}=(.*)$", text, re.MULTILINE) for word in shlex.split(line)]


def unit_in(folder: Path) -> str:
    """Return the unit with `folder` for /etc/llamapool, after systemd has copied its credentials (systemd.exec(5))."""
    text = UNIT.read_text(encoding="utf-8").replace("/etc/llamapool", str(folder))
    credentials = folder / "credentials"
    credentials.mkdir()
    for word in words_of(text, "LoadCredential"):
        name, _, source = word.partition(":")
        shutil.copy(source, credentials / name)
    return text.replace("%d", str(credentials)).replace("/var/cache/llamapool", str(folder / "cache"))


def test_a_key_that_is_removed_before_a_reload_is_refused(tmp_path: Path) -> None:
    kept, revoked = new_key(), new_key()
    keys, config = tmp_path / "keys.yaml", tmp_path / "config.yaml"
    for name, key in (("kept", kept), ("revoked", revoked)):
        add_entry(keys, {"name": name, "hash": hash_of(key)})
    port = free_port()
    models = {"demo": {"path": str(ROOT / "models/demo.gguf"), "n_ctx": 512, "load": "on_demand"}}
    config.write_text(yaml.safe_dump({"server": {"port": port}, "models": models}), encoding="utf-8")
    unit = unit_in(tmp_path)
    _, *arguments = words_of(unit, "ExecStart")
    environment = dict(word.split("=", 1) for word in words_of(unit, "Environment"))
    with RealServer([sys.executable, "-m", "server", *arguments], port, environment) as server:

        def status(key: str) -> int:
            return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status

        assert (status(kept), status(revoked)) == (200, 200)
        entries = yaml.safe_load(keys.read_text(encoding="utf-8"))["keys"]
        keys.write_text(yaml.safe_dump({"keys": entries[:1]}), encoding="utf-8")
        reload = [word.replace("$MAINPID", str(server.process.pid)) for word in words_of(unit, "ExecReload")]
        subprocess.run(reload, check=True)
        wait_until(lambda: status(revoked) != 200, "the end of the revoked key")
        assert (status(kept), status(revoked)) == (200, 401)


CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only: nothing to keep apart")


def threads() -> dict[str, str]:
    """The processors of each thread of this process, by its id; one that ends meanwhile is left out."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # when opened, when read
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found[task.name] = lines["Cpus_allowed_list"]
    return found


@two_cpus
async def test_compute_threads_inherit_the_processors_of_their_instance(tiny_path: Path) -> None:
    params = EngineParams(cpus=(frozenset({CPUS[0]}), frozenset({CPUS[1]})))
    weights = load(tiny_path, engine=params, n_parallel=2, n_threads=2)
    before = threads()
    async with engine_on(weights, params, 2) as engine:
        replies = await run(engine, *(request("a prompt of some length", id_slot=i) for i in range(4)))
        assert [reply.error for reply in replies] == [None] * 4
        new = [cpus for thread, cpus in threads().items() if thread not in before]
        assert sorted(new) == [str(CPUS[0])] * 2 + [str(CPUS[1])] * 2  # a step thread and a worker each


@two_cpus
@pytest.mark.parametrize("strict", [False, True])
def test_prompts_are_computed_elsewhere_and_the_thread_that_decodes_comes_back(
    tiny_path: Path, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ComputeThreads, "change", lambda self: None)  # whatever else is at work here
    alone, batch = frozenset({CPUS[0]}), frozenset({CPUS[1]} if not strict else CPUS[:2])
    placement = ThreadPlacement(cpus_batch=batch, strict_batch=strict)
    weights = load(tiny_path, n_parallel=2, n_threads=2, n_threads_batch=2, placement=placement)
    runner = weights.runner()
    before = threads()

    def where_after(tokens: range) -> list[str]:
        assert runner.decode([BatchEntry(0, tokens.start, list(tokens), n_outputs=1)])
        return sorted(cpus for thread, cpus in threads().items() if thread not in before)

    with ThreadPoolExecutor(1, "step", initializer=bind, initargs=(alone,)) as step:
        try:
            assert step.submit(where_after, range(5)).result() == [str(CPUS[0]), str(CPUS[1])]  # itself, a worker
            assert step.submit(where_after, range(5, 6)).result() == [str(CPUS[0])] * 2
        finally:
            step.submit(runner.close).result()
    weights.close()


def test_processors_that_are_not_here_are_refused(tiny_path: Path) -> None:
    placement = ThreadPlacement(cpus_batch=frozenset({max(CPUS) + 1}))
    with pytest.raises(ModelFailed, match="cpu_mask_batch, cpu_range_batch: there are only CPUs"):
        bound(ModelSpec("tiny", tiny_path, native=LoadParams(placement=placement)))
