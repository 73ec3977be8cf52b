"""``llamapool chat``, ``launch`` and ``doctor``. The tutorials run them too; here are their errors and the terminal."""

import os
import socket
import sys
from pathlib import Path

import pytest

from server.cli.command_line import main
from server.cli.launch import AGENTS
from tests.clients.conftest import API_KEY
from tests.support.forked_python import run
from tests.support.real_server import ROOT, RealServer, free_port
from tests.support.terminal import Terminal

COMMAND = (sys.executable, "-m", "server")
DEMO = str(ROOT / "models" / "demo.gguf")


@pytest.fixture
def agent_path(tmp_path: Path) -> str:
    """A PATH on which each agent is a script that prints its arguments and environment."""
    for name in AGENTS:
        (tmp_path / name).write_text('#!/bin/sh\necho "arguments: $*"\nexec env\n')
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_starts_with_an_environment_of_its_own(
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


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["launch", "codex", "--url", "http://127.0.0.1:9"], 1, "codex is not on the PATH; install it: npm"),
        (["launch", "emacs"], 2, "invalid choice: 'emacs'"),
        (["chat", "--url", "http://127.0.0.1:9", "hi"], 1, "no server at http://127.0.0.1:9 ("),
        (["chat", "--url", "localhost:8080", "hi"], 2, "--url: 'localhost:8080' is not a URL; write http://HOST:PORT"),
    ],
)
def test_an_error_names_the_remedy(
    words: list[str], status: int, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(words) == status
    assert expected in capsys.readouterr().err


def test_a_missing_key_and_model_are_errors(
    guarded: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", guarded.base_url]
    assert main(["chat", *url, "hi"]) == 1
    assert "refused the request: " in capsys.readouterr().err
    assert main(["chat", *url, "--api-key", API_KEY, "--model", "other", "hi"]) == 1
    assert "has no model 'other'; known: first, second" in capsys.readouterr().err
    assert main(["chat", *url, "--api-key", API_KEY, f"see @{tmp_path / 'no.png'}"]) == 1
    assert "No such file or directory; check the path" in capsys.readouterr().err


def test_a_chat_in_the_terminal_remembers_and_starts_again(demo: RealServer) -> None:
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


def test_the_doctor_finds_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "-m", DEMO, "--port", str(free_port())]) == 0
    found = {line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert found == {"version", "CPU", "configuration", "port", "keys", "memory", "model"}
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["doctor", "-m", str(tmp_path / "broken.gguf"), "--port", str(taken.getsockname()[1])]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert any("it is in use; stop the other server" in line for line in failed)
