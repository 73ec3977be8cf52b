"""``llamapool chat``, ``launch``, ``doctor``, ``health`` and ``pull``: errors, progress bars, health checks.

`test_tutorials.py` runs the commands without errors.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from server.cli import health
from server.cli.command_line import main
from server.cli.launch import AGENTS
from tests.clients.conftest import API_KEY, QUIET
from tests.support.certificates import NEEDS_OPENSSL, make_certificate
from tests.support.fake_hub import fake_hub
from tests.support.forked_python import run
from tests.support.real_server import POLL_S, REPLY_S, ROOT, RealServer, free_port
from tests.support.terminal import Terminal

COMMAND = (sys.executable, "-m", "server")
DEMO = str(ROOT / "models" / "demo.gguf")


@pytest.fixture
def agent_path(tmp_path: Path) -> str:
    """Return a PATH on which each agent is a script that prints its arguments and environment."""
    for name in AGENTS:
        (tmp_path / name).write_text('#!/bin/sh\necho "arguments: $*"\nexec env\n')
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize("agent", AGENTS)
def test_launch_starts_an_agent_with_its_own_configuration(
    agent: str, demo: RealServer, agent_path: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PATH": agent_path, "XDG_STATE_HOME": str(tmp_path), "LLAMA_API_KEY": "sk-secret"}
    done = run(
        [*COMMAND, "launch", agent, "--url", demo.base_url, "--", "fix", "--this"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "llamapool" / "agents" / agent
    configured = done.stdout + "".join(path.read_text() for path in folder.iterdir() if path.is_file())
    assert "arguments: fix --this" in done.stdout
    assert "=sk-secret" in done.stdout, "the agent gets the key"
    assert "sk-secret" not in done.stderr, "the key is not printed"
    assert demo.base_url in configured
    assert str(folder) in done.stderr
    assert "demo has 2048 tokens of context" in done.stderr
    assert "LLAMAPOOL_" not in done.stderr, "a llamapool process that the agent starts would reject the variable"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["launch", "codex", "--url", "http://127.0.0.1:9"], 1, "codex is not on the PATH; install it: npm"),
        (["launch", "emacs"], 2, "invalid choice: 'emacs'"),
        (["chat", "--url", "http://127.0.0.1:9", "hi"], 1, "no server at http://127.0.0.1:9 ("),
        (["chat", "--url", "localhost:8080", "hi"], 2, "--url: 'localhost:8080' is not a URL; write http://HOST:PORT"),
    ],
)
def test_an_error_names_the_remedy(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(arguments) == status
    assert message in capsys.readouterr().err


def test_a_missing_key_model_or_file_is_an_error(
    keyed_server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", keyed_server.base_url]
    assert main(["chat", *url, "hi"]) == 1
    assert "refused the request: " in capsys.readouterr().err
    assert main(["chat", *url, "--api-key", API_KEY, "--model", "other", "hi"]) == 1
    assert "has no model 'other'; known: first, second" in capsys.readouterr().err
    assert main(["chat", *url, "--api-key", API_KEY, f"see @{tmp_path / 'no.png'}"]) == 1
    assert "No such file or directory; check the path" in capsys.readouterr().err


def test_a_chat_in_the_terminal_has_commands_and_survives_their_errors(demo: RealServer) -> None:
    with Terminal((*COMMAND, "chat", "--url", demo.base_url)) as terminal:
        terminal.wait_for("> ")
        for line, shown in (
            ("What is the capital of France?", "The capital of France is Paris."),
            ("/model other", "has no model 'other'; known: demo"),
            ("/clear", "> "),
            ("/exit", ""),
        ):
            terminal.write(f"{line}\n")
            terminal.wait_for(shown)
        assert terminal.status() == 0


def test_doctor_reports_failed_checks_and_warnings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "-m", DEMO, "--port", str(free_port())]) == 0
    checks = {line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert checks == {"version", "CPU", "sandbox", "configuration", "port", "keys", "memory", "model"}
    monkeypatch.setattr("server.sandbox.seccomp._ARCHES", {})
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["doctor", "-m", str(tmp_path / "broken.gguf"), "--port", str(taken.getsockname()[1])]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("fail")]
    assert any("it is in use; stop the other server" in line for line in failed)
    assert any(line.startswith("warn  sandbox ") and "has no system call filter" in line for line in lines)


TIME = re.compile(r"\d\d:\d\d:\d\d")


def test_a_load_shows_a_progress_bar_and_then_the_startup_banner() -> None:
    flags = ("-m", str(ROOT / "models" / "demo.gguf"), "--alias", "demo", "--port", str(free_port()))
    with Terminal((*COMMAND, *flags)) as terminal:
        terminal.wait_for("  try ")
        terminal.wait_for('"Hello!"')
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.status() == 0
    shown = terminal.shown
    percentages = [int(percent) for percent in re.findall(r"\rloading demo: +(\d+)%\|", shown)]
    assert percentages[0] == 0
    assert percentages == sorted(percentages)  # their number varies: a new event replaces one that is not yet drawn
    banner = shown[shown.index("Llamapool ") : shown.index('"Hello!"')]
    assert not TIME.search(banner), "lines of the banner have no time"
    assert [line.split()[0] for line in banner.splitlines()[1:] if line.startswith("  ") and line[2] != " "] == [
        *("demo", "memory", "pages", "try")
    ]


def test_a_download_shows_a_progress_bar(tmp_path: Path) -> None:
    model = b"GGUF" + bytes(3_000_000)
    with fake_hub({"org/model": {"m-Q8_0.gguf": model}}) as hub:
        hub.hold = threading.Event()
        environment = {"LLAMA_CACHE": str(tmp_path), "MODEL_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        with Terminal((*COMMAND, "pull", "org/model:Q8_0"), environment) as terminal:
            terminal.wait_for("/3.00M [")
            hub.hold.set()
            assert terminal.status() == 0
    percentages = [int(percent) for percent in re.findall(r"\rorg/model:Q8_0: +(\d+)%\|", terminal.shown)]
    assert percentages == sorted(percentages)
    assert percentages[0] < 60
    assert percentages[-1] == 100
    assert "fetching" not in terminal.shown, "log lines are only for output that is no terminal"
    assert terminal.shown.splitlines()[-1].startswith("org/model:Q8_0: ")


class HealthCheckedServer(RealServer):
    """A server with a YAML file, which is ready when ``llamapool health`` succeeds."""

    def __init__(self, config: Path, address_file: Path) -> None:
        self.environment = {**QUIET, health.VARIABLE: str(address_file)}
        command = [sys.executable, "-m", "server", "--config", str(config)]
        super().__init__(command, 0, self.environment)

    def serves(self) -> bool:
        return Path(self.environment[health.VARIABLE]).exists() and self.check().returncode == 0

    def check(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "server", "health"]
        environment = {**os.environ, **self.environment}
        options: dict[str, Any] = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
        return run(command, **options, timeout=REPLY_S, check=False)


def health_checked(folder: Path, model: Path, server: str) -> HealthCheckedServer:
    config = folder / "config.yaml"
    models = f"models: {{tiny: {{path: {model}, n_ctx: 512, n_threads: 1, load: startup}}}}"
    config.write_text(f"server: {{api_keys: [{API_KEY}], {server}}}\n{models}\n", encoding="utf-8")
    return HealthCheckedServer(config, folder / "addresses")


@NEEDS_OPENSSL
def test_health_uses_tls_the_api_prefix_and_the_actual_port(model: Path, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    tls = f"ssl_key_file: {key}, ssl_cert_file: {certificate}"
    with health_checked(tmp_path, model, f"host: 0.0.0.0, port: 0, api_prefix: /llm, {tls}") as running:
        address = (tmp_path / "addresses").read_text(encoding="utf-8")
        assert address.startswith("https://0.0.0.0:")
        assert address.endswith("/llm\n")
        running.environment[health.VARIABLE] = str(tmp_path / "nothing")
        assert running.check().returncode == 1
    assert not (tmp_path / "addresses").exists()


def test_health_connects_to_a_unix_socket(model: Path, tmp_path: Path) -> None:
    with health_checked(tmp_path, model, f"host: {tmp_path}/pool.sock, api_prefix: /llm") as running:
        assert running.check().stdout == '{"status":"ok"}\n'


def test_a_server_that_can_not_write_its_address_file_logs_it_and_serves(model: Path, tmp_path: Path) -> None:
    with health_checked(tmp_path, model, "port: 0") as running:
        (tmp_path / "folder").mkdir()
        other = HealthCheckedServer(tmp_path / "config.yaml", tmp_path / "folder")
        try:
            while b"listening on" not in (log := other.log.read_bytes()):
                assert other.process.poll() is None, other.log_tail()
                time.sleep(POLL_S)
            assert b"cannot write" in log
        finally:
            other.stop()
        assert running.check().returncode == 0
