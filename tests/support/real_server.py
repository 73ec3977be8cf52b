"""Start and stop real server processes on free loopback ports, for tests and benchmarks.

SIGTERM stops a server. The processes of `tests/support/oracle.py` also end when their parent closes a pipe.
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
# Only failures wait until these deadlines, so they are long enough for a slow or busy machine.
REPLY_S = 120.0  # until the next bytes of a reply
STOP_S = 60.0  # a server that has not stopped by then is killed
POLL_S = 0.05
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")
"""Flags for comparing texts. With a KV cache of 16 bits and flash attention, the rest of a batch changes logits by
thousandths, which can exceed the difference of two tokens. With these flags, the change is less than 1% of that."""
_USED_PORTS: set[int] = set()  # includes those of servers that do not listen yet


class ServerEndError(Exception):
    """The process did not exit with the expected status after SIGTERM: it was killed, crashed or failed."""


class ServerStartError(Exception):
    """The process exited or timed out before /health returned 200. The message contains its log."""


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
    tls: ssl.SSLContext | None = None  # for HTTPS: the trusted certificates
    ready_s = 180.0
    poll_s = POLL_S

    def __init__(
        self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None, *, ends_with: int = 0
    ) -> None:
        """Start `command`, which must listen on `port` of 127.0.0.1. Does not wait until it does.

        ``ends_with``: the expected exit status after SIGTERM, as in `Popen.returncode`.
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
        """Send a request on a new connection. `body` is sent as JSON, or unchanged if it is bytes."""
        with self._sent(method, path, body, headers or {}, timeout_s) as response:
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    @contextmanager
    def _sent(
        self, method: str, path: str, body: object, headers: Mapping[str, str] = {}, timeout_s: float = REPLY_S
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the response. Closes the connection at the end of the block."""
        connection = self._connection(timeout_s)
        try:
            payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json", **headers})
            yield connection.getresponse()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request. Fails unless its status is 200."""
        reply = self.request("GET", path)
        assert reply.status == 200, reply
        return reply.json()

    def post(self, path: str, body: object) -> Any:
        """Return the JSON of a POST request. Fails unless its status is 200."""
        reply = self.request("POST", path, body)
        assert reply.status == 200, reply
        return reply.json()

    def events(self, path: str, body: object) -> list[str]:
        """Return the ``data:`` of each server-sent event of a streamed POST request."""
        reply = self.request("POST", path, body)
        assert reply.status == 200, reply
        blocks = reply.body.decode().replace("\r\n", "\n").split("\n\n")
        lines = (line for block in blocks for line in block.split("\n"))
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @contextmanager
    def open_stream(self, path: str, body: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        """Send a streamed POST request and yield after its first event. Closes the connection after the block."""
        with self._sent("POST", path, {**body, "stream": True}) as response:
            assert response.status == 200, response.read()
            with response:
                response.readline()
                yield response

    def raw_chunks(self, path: str, body: object) -> list[bytes]:
        """Return the HTTP chunks of a streamed POST request, without the last empty one."""
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
        """Send SIGTERM, then SIGKILL after `STOP_S`. Raises `ServerEndError` for an unexpected exit status."""
        status = self._end()
        log = self.log_tail()
        self.log.unlink(missing_ok=True)
        if status != self.ends_with:
            raise ServerEndError(f"exit status {status}, not {self.ends_with}\n{log}")

    def _end(self) -> int:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()  # does nothing if it has exited
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
    """Return a loopback port that is free and was not returned before.

    Each worker of pytest-xdist has its own ports, since another one's port may be free until its server starts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker %= n_workers  # a replacement for a crashed worker has a higher number
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port // 2 % n_workers == worker and port not in _USED_PORTS:  # Linux prefers odd ports
            _USED_PORTS.add(port)
            return port


def llamapool(model: Path, *flags: str, environment: Mapping[str, str] | None = None) -> RealServer:
    """Start ``python -m server -m MODEL`` with `flags` of llama-server."""
    return _llamapool("-m", str(model), "--host", "127.0.0.1", *flags, environment=environment)


def llamapool_config(config: Path, *flags: str, environment: Mapping[str, str] | None = None) -> RealServer:
    return _llamapool("--config", str(config), *flags, environment=environment)


def _llamapool(*arguments: str, environment: Mapping[str, str] | None) -> RealServer:
    port = free_port()
    return RealServer([sys.executable, "-m", "server", *arguments, "--port", str(port)], port, environment)
