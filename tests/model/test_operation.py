"""Operation of a real server with native models: model swap and sleep under load, signals, low memory, usage after a
kill, key revocation under systemd, CPU placement.
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


def complete(server: RealServer, n: int, **fields: Any) -> str:
    body = {"prompt": f"Number {n} of many.", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    text: str = server.post("/v1/completions", body)["choices"][0]["text"]
    return text


def test_models_are_swapped_under_load_without_changing_replies(tiny_path: Path, tmp_path: Path) -> None:
    models = {name: {"path": str(tiny_path), "n_ctx": 512, "n_parallel": 2, "n_threads": 1} for name in "abc"}
    config = tmp_path / "models.yaml"
    config.write_text(json.dumps({"server": {"host": "127.0.0.1", "models_max": 2}, "models": models}))
    with llamapool_config(config) as server, ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(lambda n: complete(server, n % 4, model="abc"[n % 3]), range(24)))
        assert [len(set(texts[k::4])) for k in range(4)] == [1, 1, 1, 1]
        states = [model["status"]["value"] for model in server.get("/models")["data"]]
        assert states.count("loaded") <= 2


def test_a_sleeping_model_wakes_under_load_without_changing_replies(tiny_path: Path) -> None:
    with llamapool(tiny_path, *FLAGS, "--sleep-idle-seconds", "1") as server:
        expected = complete(server, 1)
        for _ in range(2):
            while not server.get("/props").get("is_sleeping"):
                pass
            with ThreadPoolExecutor(8) as pool:
                assert set(pool.map(lambda _: complete(server, 1), range(8))) == {expected}


def test_sigterm_drains_streams_and_exits_with_status_0(tiny_path: Path) -> None:
    body = {"prompt": "on and on", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    with (
        llamapool(tiny_path, "-c", "32768", "-np", "1", "-t", "1", "--drain-s", "60") as server,
        server.open_stream("/v1/completions", body) as response,
        ThreadPoolExecutor(1) as pool,
    ):
        lines = pool.submit(response.readlines)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
        assert lines.result(60)[-2:] == [b"data: [DONE]\n", b"\n"]


def test_a_crash_of_native_code_logs_the_stacks_of_all_threads(tiny_path: Path) -> None:
    server = llamapool(tiny_path, *FLAGS)
    server.ends_with = -signal.SIGSEGV
    with server:
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(60) == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in server.log_tail(100_000)
        assert "/server/engine/loop.py" in server.log_tail(100_000)


def test_requests_succeed_when_there_is_no_memory_to_offload_states(tmp_path: Path) -> None:
    deep = gguf_file(tmp_path, TinyModel(n_layer=12, n_embd=256, n_head_kv=4))  # a state has 24 MB
    with llamapool(deep, "-c", "2048", "-np", "2", "-t", "1", "--cache-ram", "100000", *EXACT) as server:
        prompts = [[300 + (i * step) % 97 for i in range(1000)] for step in range(2, 8)]

        def generated(prompt: list[int]) -> list[int]:
            body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": True, "return_tokens": True}
            tokens: list[int] = server.post("/completion", body)["tokens"]
            return tokens

        first = generated(prompts[0])
        used = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
        for prompt in prompts[1:]:
            assert len(generated(prompt)) == 4
        assert generated(prompts[0]) == first
        assert "could not be kept: there is no memory" in server.log.read_text()
        assert server.request("GET", "/readyz").status == 200


DEMO = ROOT / "models" / "demo.gguf"
DEADLINE_S = 60.0
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}


def n_stored_requests(path: Path) -> int:
    """Return the number of requests in a state database, or 0."""
    with sqlite3.connect(path) as connection:
        (n,) = connection.execute("SELECT sum(requests) FROM token_usage").fetchone()
        return int(n or 0)


def test_stored_usage_survives_sigkill(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite3"
    flags = ("--state", str(state), "-c", "512", "-np", "1", "-t", "1", "--no-warmup")
    with llamapool(DEMO, *flags) as server:
        server.ends_with = -signal.SIGKILL
        usage = server.post("/v1/chat/completions", CHAT)["usage"]
        wait_until(lambda: n_stored_requests(state) == 1, "the usage in the database")
        server.process.kill()
        server.process.wait(DEADLINE_S)
    with llamapool(DEMO, *flags) as server:
        (row,) = server.get("/v1/usage")["data"]
        assert (row["requests"], row["prompt_tokens"]) == (1, usage["prompt_tokens"])
        assert row["completion_tokens"] == usage["completion_tokens"]
        server.post("/v1/chat/completions", CHAT)
        assert server.get("/v1/usage")["data"][0]["requests"] == 2


UNIT = ROOT / "deploy/systemd/llamapool.service"


def unit_words(text: str, name: str) -> list[str]:
    """Return the words of all values of a setting in a systemd unit."""
    return [word for line in re.findall(rf"^{name}=(.*)$", text, re.MULTILINE) for word in shlex.split(line)]


def unit_in(folder: Path) -> str:
    """Return the shipped unit with `folder` instead of /etc/llamapool. Copies its credentials, as systemd does."""
    text = UNIT.read_text(encoding="utf-8").replace("/etc/llamapool", str(folder))
    credentials = folder / "credentials"
    credentials.mkdir()
    for word in unit_words(text, "LoadCredential"):
        name, _, source = word.partition(":")
        shutil.copy(source, credentials / name)
    return text.replace("%d", str(credentials)).replace("/var/cache/llamapool", str(folder / "cache"))


def test_systemctl_reload_revokes_a_key_that_was_removed(tmp_path: Path) -> None:
    valid, revoked = new_key(), new_key()
    keys, config = tmp_path / "keys.yaml", tmp_path / "config.yaml"
    for name, key in (("valid", valid), ("revoked", revoked)):
        add_entry(keys, {"name": name, "hash": hash_of(key)})
    port = free_port()
    models = {"demo": {"path": str(ROOT / "models/demo.gguf"), "n_ctx": 512, "load": "on_demand"}}
    config.write_text(yaml.safe_dump({"server": {"port": port}, "models": models}), encoding="utf-8")
    unit = unit_in(tmp_path)
    _, *arguments = unit_words(unit, "ExecStart")
    environment = dict(word.split("=", 1) for word in unit_words(unit, "Environment"))
    with RealServer([sys.executable, "-m", "server", *arguments], port, environment) as server:

        def status(key: str) -> int:
            return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status

        assert (status(valid), status(revoked)) == (200, 200)
        entries = yaml.safe_load(keys.read_text(encoding="utf-8"))["keys"]
        keys.write_text(yaml.safe_dump({"keys": entries[:1]}), encoding="utf-8")
        reload = [word.replace("$MAINPID", str(server.process.pid)) for word in unit_words(unit, "ExecReload")]
        subprocess.run(reload, check=True)
        wait_until(lambda: status(revoked) != 200, "the revocation of the key")
        assert (status(valid), status(revoked)) == (200, 401)


CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def thread_cpus() -> dict[str, str]:
    """Return the allowed CPUs of each thread of this process, by thread id. Omits threads that end meanwhile."""
    cpus = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # raised by open and by read
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            cpus[task.name] = lines["Cpus_allowed_list"]
    return cpus


@two_cpus
async def test_compute_threads_inherit_the_cpus_of_their_instance(tiny_path: Path) -> None:
    params = EngineParams(cpus=(frozenset({CPUS[0]}), frozenset({CPUS[1]})))
    weights = load(tiny_path, engine=params, n_parallel=2, n_threads=2)
    before = thread_cpus()
    async with engine_on(weights, params, 2) as engine:
        replies = await run(engine, *(request("a prompt of some length", id_slot=i) for i in range(4)))
        assert [reply.error for reply in replies] == [None] * 4
        new = [cpus for thread, cpus in thread_cpus().items() if thread not in before]
        assert sorted(new) == [str(CPUS[0])] * 2 + [str(CPUS[1])] * 2  # a step thread and a worker each


@two_cpus
@pytest.mark.parametrize("strict", [False, True])
def test_prefill_runs_on_its_own_cpus_and_decode_on_those_of_the_instance(
    tiny_path: Path, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ComputeThreads, "change", lambda self: None)  # ignore the load of this machine
    alone, batch = frozenset({CPUS[0]}), frozenset({CPUS[1]} if not strict else CPUS[:2])
    placement = ThreadPlacement(cpus_batch=batch, strict_batch=strict)
    weights = load(tiny_path, n_parallel=2, n_threads=2, n_threads_batch=2, placement=placement)
    runner = weights.runner()
    before = thread_cpus()

    def cpus_after_decode(tokens: range) -> list[str]:
        """Decode, and return the CPUs of the step thread and its worker."""
        assert runner.decode([BatchEntry(0, tokens.start, list(tokens), n_outputs=1)])
        return sorted(cpus for thread, cpus in thread_cpus().items() if thread not in before)

    with ThreadPoolExecutor(1, "step", initializer=bind, initargs=(alone,)) as step:
        try:
            assert step.submit(cpus_after_decode, range(5)).result() == [str(CPUS[0]), str(CPUS[1])]
            assert step.submit(cpus_after_decode, range(5, 6)).result() == [str(CPUS[0])] * 2
        finally:
            step.submit(runner.close).result()
    weights.close()


def test_rejects_cpus_that_the_machine_lacks(tiny_path: Path) -> None:
    placement = ThreadPlacement(cpus_batch=frozenset({max(CPUS) + 1}))
    with pytest.raises(ModelFailed, match="cpu_mask_batch, cpu_range_batch: there are only CPUs"):
        bound(ModelSpec("tiny", tiny_path, native=LoadParams(placement=placement)))
