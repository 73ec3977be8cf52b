"""A real redis-server on a Unix socket in a temporary folder. Tests can kill and restart it."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NO_REDIS = "redis-server is not installed"
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason=NO_REDIS)


class RedisServer:
    """The redis-server of one test. Confirmed writes survive `kill`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and return when it accepts connections."""
        command = ["redis-server", "--port", "0", "--unixsocket", f"{self._folder}/redis.sock", "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(
            [*command, "--dir", str(self._folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "ready to accept connections" in line.lower():
                return
        raise AssertionError("redis-server has exited:\n" + "".join(lines))

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """Start a server and kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:  # short: a socket's path has at most 107 characters
        server = RedisServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()
