"""Shutdown, drain and disconnects: requests end, slots are freed, and processes exit."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from server import app as application
from server.app import end_tasks
from tests.api.conftest import TIMEOUT_S, Api, GoLive, Serve, chat_request, idle, until
from tests.api.inference.test_media import IMAGE
from tests.support.fakes import FakeLoader
from tests.support.forked_python import Popen, run

pytestmark = pytest.mark.slow

ENDLESS: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}


async def test_task_that_ignores_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "END_RETRY_S", 0.0)

    async def ignore_one() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(ignore_one())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert task.cancelled()


async def test_missing_system_call_filter_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.sandbox.seccomp._ARCHES", {})
    async with serve() as api:
        await api.expect("POST /v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert caplog.text.count("has no system call filter") == 1


async def test_draining_server_refuses_requests_but_answers_health_checks(api: Api) -> None:
    api.app.state.services.draining.set()
    refused = {"error": {"type": "unavailable_error"}}
    assert (await api.expect("POST /v1/completions", {"prompt": "x"}, 503, refused)).headers["retry-after"]
    await api.expect("GET /livez")
    await api.expect("GET /readyz", None, 503)


async def test_stream_that_exceeds_the_drain_time_ends_with_an_error(live: GoLive) -> None:
    steps = threading.Semaphore(3)
    async with live(FakeLoader(n_ctx_seq=100_000, steps=steps), server={"drain_s": 0}) as server:
        reader, writer = await server.connect(chat_request(max_tokens=90_000, ignore_eos=True))
        await reader.readuntil(b"data: ")
        server.server.should_exit = True  # uvicorn does this at SIGTERM, and `StopSignals` closes the pool
        closing = asyncio.create_task(server.api.pool.close(0))
        while not closing.done():
            steps.release()  # let the current step and then the request end
            await asyncio.sleep(0.001)
        rest = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        assert b"shutting down" in rest
        assert b"[DONE]" not in rest
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_frees_the_slot_of_the_request(
    live: GoLive, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    steps = threading.Semaphore(2)
    async with live(FakeLoader(steps=steps, n_seq=1)) as server:
        engine = server.api.loaded().engine
        _, writer = await server.connect(chat_request(stream=stream, **ENDLESS))
        await until(lambda: any(slot.is_processing for slot in engine.slots()))
        writer.transport.abort()
        await until(lambda: not server.api.pool.states()[0].n_leases)
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
        steps.release()
        await idle(engine)
        reply = asyncio.create_task(server.api.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}))
        for _ in range(50):
            steps.release()
        assert (await reply).status_code == 200


async def test_client_that_stops_reading_is_disconnected_and_its_slot_freed(
    live: GoLive, caplog: pytest.LogCaptureFixture
) -> None:
    loader = FakeLoader(n_seq=1, n_ctx_seq=9000)  # a reply of about 20 MB exceeds the socket buffers
    async with live(loader, options={"idle_s": 0.2}) as server:
        engine = server.api.loaded().engine
        client = socket.create_connection(("127.0.0.1", server.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        with caplog.at_level(logging.WARNING):
            client.sendall(chat_request(max_tokens=8000, ignore_eos=True, logprobs=True, top_logprobs=20))
            await until(lambda: engine.busy)
            await idle(engine)
            await until(lambda: "stopped reading" in caplog.text)
            await until(lambda: not server.server.server_state.tasks)
        client.close()  # in production `server.listen` has the kernel close it


def test_invalid_setting_stops_uvicorn_with_a_one_line_error() -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA", "LLAMAPOOL"))}
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", "0"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False}
    done = run(command, env=clean | {"LLAMAPOOL_SERVER__PORT": "many"}, timeout=TIMEOUT_S, **options)
    assert done.returncode == 2
    (line,) = [line for line in done.stdout.splitlines() if line]
    assert line.startswith("llamapool: ")
    assert "port" in line.lower()


MAIN = """
import asyncio, threading, uvicorn
from server.app import create_app
from tests.api.conftest import make_settings, LiveServer
from tests.support.fakes import FakeLoader
loader = FakeLoader(steps=threading.Semaphore(1))
server = LiveServer(create_app(make_settings(server={"drain_s": 60}), loader=loader), port=0)
async def main():
    serving = asyncio.create_task(server.serve())
    await server.ready.wait()
    await server.config.loaded_app.app.state.services.pool.settled()
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await server.config.loaded_app.app.state.services.draining.wait()
    print("draining", flush=True)
    await serving
asyncio.run(main())
"""


def test_second_sigterm_ends_the_process_during_a_stream() -> None:
    with Popen([sys.executable, "-c", MAIN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
                client.sendall(chat_request(**ENDLESS))
                received = b""
                while b"data: " not in received:
                    received += (chunk := client.recv(65536))
                    assert chunk, f"no stream: {received!r}"
                process.send_signal(signal.SIGTERM)
                process.stdout.readline()  # "draining"
                assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


HANGING = """
import sys
from functools import partial
import server.engine.instances
import server.model_pool
import server.uvicorn_config
from server.cli import main
from tests.support.isolated_fakes import in_process
server.model_pool.loader_factory = lambda remote: in_process(sys.argv[1])
server.model_pool.PoolLimits = partial(server.model_pool.PoolLimits, end_s=1.0)
server.engine.instances.JOIN_POLL_S = 0.1
server.uvicorn_config.GRACE_S = 1.0
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("hung", "isolation", "status", "logged"),
    [("step", "none", 1, "does not end"), ("step", "process", 0, "is killed"), ("encoder", "none", 1, "does not end")],
)
def test_server_stops_although_a_library_call_hangs(
    tmp_path: Path, hung: str, isolation: str, status: int, logged: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(50))
    kind = "acting" if hung == "step" else f"encodes {tmp_path}/hangs"
    flags = ["-m", str(tmp_path / "m.gguf"), "--port", "0", "--drain-s", "0", "--isolation", isolation]
    command = [sys.executable, "-c", HANGING, kind, *flags, "--log-file", str(tmp_path / "log")]
    with Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (line for line in process.stderr if "listening on " in line or "is loaded: " in line)
            line = next(line for line in [next(lines), next(lines)] if "listening on " in line)  # the order varies
            port = int(line.rpartition(":")[2])
            content: Any = f"!hang {tmp_path}/hangs!" if hung == "step" else [{"type": "text", "text": "Look:"}, IMAGE]
            messages = [{"role": "user", "content": content}]
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
                client.sendall(chat_request(messages=messages, **ENDLESS))
                while not (tmp_path / "hangs").exists():
                    assert process.poll() is None
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_S) == status
            assert logged in (tmp_path / "log").read_text()
        finally:
            process.kill()
