"""``llamapool health``: what it prints and returns without a server that answers 200."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli import main
from server.cli.health import VARIABLE


class _Loading(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def loading() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Loading) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_server_that_loads_is_not_healthy(loading: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    file.write_text(f"http://0.0.0.0:{loading}/llm\nhttp://127.0.0.1:1\n")
    assert main(["health", str(file)]) == 1
    assert capsys.readouterr().out == "503 /llm/health\n"


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:1\n", "nonsense\n", "http+unix:///nowhere/x.sock\n"])
def test_nobody_answers(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    file.write_text(text)
    assert main(["health", str(file)]) == 1
    assert str(file) in capsys.readouterr().out


def test_the_file_is_named_by_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert main(["health"]) == 1
    assert "No such file" in capsys.readouterr().out
    monkeypatch.delenv(VARIABLE)
    assert main(["health"]) == 2
    assert VARIABLE in capsys.readouterr().err
    assert main(["health", "--help"]) == 0
    assert "llamapool health [FILE]" in capsys.readouterr().out
