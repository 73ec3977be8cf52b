"""What a server imports before it listens, where it may listen without a key, and ``llamapool health``."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.cli import main
from server.cli.health import VARIABLE, ask
from server.errors import ConfigError
from server.listen import check_reach, open_listeners
from server.options.server import ServerSettings
from tests.support.real_server import ROOT, free_port
from tests.support.stand_in_hub import QuietHandler, serving

_PROGRAM = """
import json, sys
import server.cli.command_line, server.app
from server.options.option import SettingsModel
from server.dialects.fields import Body

def built(base):
    own = [base.__name__] if base.__pydantic_complete__ else []
    return sorted({*own, *(name for kind in base.__subclasses__() for name in built(kind))})

print(json.dumps({"modules": [*sys.modules], "bodies": built(Body), "options": built(SettingsModel)}))
"""
_LATER = (
    "server.llama.loader",  # not by `check-config`
    "llama_cpp",
    "limits",  # once a key has limits
    "server.cli.model_commands",  # pull, list and rm
    "server.options.reference",  # --help
    "server.hub.child",
    "huggingface_hub",
    "jinja2",  # in the processes that render
    "tqdm",
    "jsonschema",
)
_NOT_BEFORE_A_LOAD = ("fastapi", "httpcore2", "prometheus_client", "llama_cpp.llama", "diskcache", *_LATER[3:])


_COUNTED = frozenset(
    (
        *("numpy", "pydantic", "uvicorn", "httpcore2", "jinja2", "yaml", "websockets", "anyio", "click"),
        *("h11", "starlette", "tqdm", "fastapi", "opentelemetry", "cryptography", "prometheus_client", "llguidance"),
    )
)


def test_what_is_imported_and_built_before_the_server_listens() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not set(_LATER) & set(found["modules"])
    own = [name for name in found["modules"] if name.partition(".")[0] == "server"]
    assert len(own) < 360  # each costs one to five milliseconds of CPU time at every start
    # Of the packages that the server depends on; others, such as rich, are only installed for development.
    dependencies = [name for name in found["modules"] if name.partition(".")[0] in _COUNTED]
    assert len(dependencies) < 490
    assert found["bodies"] == []  # the first request of an API builds its own
    assert found["options"] == ["ModelDefaults", "ServerSettings"]  # not the classes that they are made of


def test_a_model_begins_to_load_before_the_application_is_imported() -> None:
    program = "import sys, server.cli.command_line, server.model_pool, server.llama.loader; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert not set(_NOT_BEFORE_A_LOAD) & set(found)
    assert sum(name.partition(".")[0] == "server" for name in found) < 210


@pytest.mark.parametrize("host", [("127.0.0.1",), ("localhost", "::1"), ("/run/llamapool.sock",)])
@pytest.mark.parametrize("closed", [False, True])
def test_what_only_this_machine_reaches_needs_no_key(host: tuple[str, ...], closed: bool) -> None:
    assert check_reach(ServerSettings(host=host, closed=closed)) == []


@pytest.mark.parametrize("host", [("0.0.0.0",), ("127.0.0.1", "::"), ("llm.example",)])
def test_an_open_address_without_a_key_is_warned_of_or_refused(host: tuple[str, ...]) -> None:
    (warning,) = check_reach(ServerSettings(host=host, port=9000))
    assert warning.startswith(f"ANYONE WHO REACHES {host[-1]} PORT 9000 MAY USE THIS SERVER")
    with pytest.raises(ConfigError, match=r"others can reach .*, and there is no key; give LLAMA_API_KEY"):
        check_reach(ServerSettings(host=host, closed=True))
    assert check_reach(ServerSettings(host=host, closed=True, api_keys=("secret",))) == []


def test_the_administrations_address_counts_where_there_is_one() -> None:
    assert check_reach(ServerSettings(admin_host="0.0.0.0")) == []
    (warning,) = check_reach(ServerSettings(admin_host="0.0.0.0", admin_port=9000))
    assert "ANYONE WHO REACHES 0.0.0.0" in warning


def test_a_wrong_address_names_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for host, option in (("a", "host"), (f"{tmp_path}/s.sock", "admin_host")):
        with pytest.raises(ConfigError, match=rf"^server\.{option}: 'a' is not an address of this machine: unknown"):
            open_listeners(ServerSettings(host=(host,), admin_host="a", admin_port=9000))


def test_the_administration_has_a_socket_of_its_own() -> None:
    port = free_port()
    listeners = open_listeners(ServerSettings(port=0, admin_port=port))
    try:
        assert [listener.url.rpartition(":")[2] == str(port) for listener in listeners] == [False, True]
    finally:
        for listener in listeners:
            listener.close()
    with pytest.raises(ValueError, match="admin_port and port must differ"):
        ServerSettings(port=port, admin_port=port)


class _Loading(QuietHandler):
    def reply(self) -> None:
        self.answer(503, self.path.encode())


def test_a_server_that_loads_is_not_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    with serving(_Loading) as port:
        file.write_text(f"http://0.0.0.0:{port}/llm\nhttp://127.0.0.1:1\n")
        assert main(["health", str(file)]) == 1
    assert capsys.readouterr().out == "503 /llm/health\n"


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:1\n", "nonsense\n", "http+unix:///nowhere/x.sock\n"])
def test_nobody_answers(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    file.write_text(text)
    assert main(["health", str(file)]) == 1
    assert str(file) in capsys.readouterr().out


def test_a_unix_socket_may_be_in_a_folder_that_looks_like_one(tmp_path: Path) -> None:
    path = tmp_path / "a.sockets" / "b.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(TimeoutError):
            ask(f"http+unix://{path}/llm", 0.01)


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
