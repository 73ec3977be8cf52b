"""Real server processes for tests and benchmarks: started on a free loopback port, waited for, and always stopped.

A child process ends when its parent closes a pipe (`tests/support/oracle.py`). SIGTERM stops Llamapool.
"""

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
# Deadlines: they decide how long a failure takes, so they leave room for a machine that is slow or busy.
REPLY_S = 120.0  # for the next bytes of a reply
STOP_S = 60.0  # a server that has not stopped by then is killed
POLL_S = 0.05
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")
"""Flags for comparing texts: with keys and values of 16 bits, and with flash attention, logits differ by thousandths
with what else is in a batch, where two tokens can be as near; without them, by less than a hundredth of that."""
_GIVEN: set[int] = set()  # ports: a server that is still starting does not listen on its own yet


class ServerEndError(Exception):
    """The process did not end as one that was told to: killed, by a signal of its own, or with a failure's status."""


class ServerStartError(Exception):
    """The process ended, or its deadline passed, before /health answered 200. The message carries its log."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RealServer:
    """A server process. Use it as a context manager; `request` uses HTTPS if it has ``tls``."""

    health = "/health"
    tls: ssl.SSLContext | None = None  # for HTTPS: whom requests trust
    ready_s = 180.0
    poll_s = POLL_S

    def __init__(
        self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None, *, ends_with: int = 0
    ) -> None:
        """Start `command`, which will listen on `port` of 127.0.0.1; returns at once.

        ``ends_with`` is its exit status after SIGTERM, as `Popen.returncode` says it.
        """
        self.ends_with = ends_with
        self.host = "127.0.0.1"
        self.port = port
        with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log", delete=False) as log:
            self.log = Path(log.name)
            self.process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def base_url(self) -> str:
        """``http://host:port``, without a path."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def wait_until_ready(self) -> None:
        """Wait until it `serves`. Raises `ServerStartError`."""
        deadline = time.monotonic() + self.ready_s
        while not self.serves():
            if self.process.poll() is not None:
                raise ServerStartError(f"exit status {self.process.returncode}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerStartError(f"no answer within {self.ready_s:.0f} s\n{self.log_tail()}")
            time.sleep(self.poll_s)

    def serves(self) -> bool:
        try:
            return self.request("GET", self.health, timeout_s=5.0).status == 200
        except OSError:  # not listening yet
            return False

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.tls is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_S,
    ) -> Reply:
        """One request on its own connection; `body` is sent as JSON, or as it is when it is bytes."""
        with self._sent(method, path, body, headers or {}, timeout_s) as response:
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    @contextmanager
    def _sent(
        self, method: str, path: str, body: object, headers: Mapping[str, str] = {}, timeout_s: float = REPLY_S
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; leaving the block hangs up."""
        connection = self._connection(timeout_s)
        try:
            payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json", **headers})
            yield connection.getresponse()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON of a GET that must succeed."""
        reply = self.request("GET", path)
        assert reply.status == 200, reply
        return reply.json()

    def post(self, path: str, body: object) -> Any:
        """The JSON of a POST that must succeed."""
        reply = self.request("POST", path, body)
        assert reply.status == 200, reply
        return reply.json()

    def events(self, path: str, body: object) -> list[str]:
        """The ``data:`` of each server-sent event of a streamed POST, to its end."""
        reply = self.request("POST", path, body)
        assert reply.status == 200, reply
        blocks = reply.body.decode().replace("\r\n", "\n").split("\n\n")
        lines = (line for block in blocks for line in block.split("\n"))
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @contextmanager
    def open_stream(self, path: str, body: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        """A streamed POST whose first event has arrived; leaving the block hangs up."""
        with self._sent("POST", path, {**body, "stream": True}) as response:
            assert response.status == 200, response.read()
            with response:
                response.readline()
                yield response

    def raw_chunks(self, path: str, body: object) -> list[bytes]:
        """The HTTP chunks of a streamed POST, as the server framed them, without the last empty one."""
        with self._sent("POST", path, body) as response:
            assert response.getheader("Transfer-Encoding") == "chunked", response.getheaders()
            framed = response.fp
            chunks = []
            while size := int(framed.readline().split(b";")[0], 16):
                chunks.append(framed.read(size))
                framed.readline()
            return chunks

    def log_tail(self, n_bytes: int = 4000) -> str:
        return self.log.read_bytes()[-n_bytes:].decode(errors="replace")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after `STOP_S`. Raises `ServerEndError` where it did not end as it should."""
        status = self._end()
        log = self.log_tail()
        self.log.unlink(missing_ok=True)
        if status != self.ends_with:
            raise ServerEndError(f"exit status {status}, not {self.ends_with}\n{log}")

    def _end(self) -> int:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()  # nothing happens where it has ended
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(STOP_S)

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self._end()
            self.log.unlink(missing_ok=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port() -> int:
    """A loopback port that nobody listens on right now, and that was not given before.

    Where several workers of pytest-xdist run, each has its own: what one was given may not be listened on yet.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker %= n_workers  # one that takes the place of one that died has the next number
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port // 2 % n_workers == worker and port not in _GIVEN:  # Linux gives odd ones only, as long as it can
            _GIVEN.add(port)
            return port


def llamapool(model: Path, *flags: str, environment: Mapping[str, str] | None = None) -> RealServer:
    """``python -m server -m MODEL`` with `flags` in llama-server's own words."""
    port = free_port()
    command = [sys.executable, "-m", "server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    return RealServer([*command, *flags], port, environment)


def llamapool_config(config: Path, *flags: str, environment: Mapping[str, str] | None = None) -> RealServer:
    port = free_port()
    command = [sys.executable, "-m", "server", "--config", str(config), "--port", str(port)]
    return RealServer([*command, *flags], port, environment)
