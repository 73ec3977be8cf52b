"""``llamapool health`` against real servers, as a container's health check runs it: no flags, one variable."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server.cli import health
from tests.clients.conftest import API_KEY, QUIET
from tests.support.certificates import NEEDS_OPENSSL, make_certificate
from tests.support.forked_python import run
from tests.support.real_server import POLL_S, REPLY_S, ROOT, RealServer


class Checked(RealServer):
    """A server with a YAML file, which is ready when ``llamapool health`` says so."""

    def __init__(self, config: Path, addresses: Path) -> None:
        self.environment = {**QUIET, health.VARIABLE: str(addresses)}
        command = [sys.executable, "-m", "server", "--config", str(config)]
        super().__init__(command, 0, self.environment)

    def serves(self) -> bool:
        return Path(self.environment[health.VARIABLE]).exists() and self.check().returncode == 0

    def check(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "server", "health"]
        environment = {**os.environ, **self.environment}
        how: dict[str, Any] = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
        return run(command, **how, timeout=REPLY_S, check=False)


def served(folder: Path, model: Path, server: str) -> Checked:
    config = folder / "config.yaml"
    models = f"models: {{tiny: {{path: {model}, n_ctx: 512, n_threads: 1, load: startup}}}}"
    config.write_text(f"server: {{api_keys: [{API_KEY}], {server}}}\n{models}\n", encoding="utf-8")
    return Checked(config, folder / "addresses")


@NEEDS_OPENSSL
def test_health_asks_over_tls_under_the_api_prefix_at_whatever_port(model: Path, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    tls = f"ssl_key_file: {key}, ssl_cert_file: {certificate}"
    with served(tmp_path, model, f"host: 0.0.0.0, port: 0, api_prefix: /llm, {tls}") as running:
        address = (tmp_path / "addresses").read_text(encoding="utf-8")
        assert address.startswith("https://0.0.0.0:")
        assert address.endswith("/llm\n")
        running.environment[health.VARIABLE] = str(tmp_path / "nothing")
        assert running.check().returncode == 1
    assert not (tmp_path / "addresses").exists()


def test_health_asks_at_a_unix_socket(model: Path, tmp_path: Path) -> None:
    with served(tmp_path, model, f"host: {tmp_path}/pool.sock, api_prefix: /llm") as running:
        assert running.check().stdout == '{"status":"ok"}\n'


def test_a_server_whose_address_file_cannot_be_written_says_so_and_serves(model: Path, tmp_path: Path) -> None:
    with served(tmp_path, model, "port: 0") as running:
        (tmp_path / "in_the_way").mkdir()
        config = tmp_path / "config.yaml"
        other = Checked(config, tmp_path / "in_the_way")
        try:
            while b"listening on" not in (log := other.log.read_bytes()):
                assert other.process.poll() is None, other.log_tail()
                time.sleep(POLL_S)
            assert b"cannot write" in log
        finally:
            other.stop()
        assert running.check().returncode == 0
