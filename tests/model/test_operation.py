"""What operators do to a real server, with native weights: swap and sleep under load, several instances, SIGTERM while
streams run, a full disk, too little memory.
"""

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import EXACT, RealServer, llamapool, llamapool_config

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
