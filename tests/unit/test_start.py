"""Imports before a server listens, addresses that need an API key, and ``llamapool health``."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.cli import main
from server.cli.health import VARIABLE, get_health
from server.errors import ConfigError
from server.listen import check_reach, open_listeners
from server.options.server import ServerSettings
from tests.support.fake_hub import QuietHandler, serving
from tests.support.real_server import ROOT, free_port

_PRINT_IMPORTS = """
import json, sys
import server.cli.command_line, server.app
from server.options.option import SettingsModel
from server.dialects.fields import Body

def complete(base):
    own = [base.__name__] if base.__pydantic_complete__ else []
    return sorted({*own, *(name for subclass in base.__subclasses__() for name in complete(subclass))})

print(json.dumps({"modules": [*sys.modules], "bodies": complete(Body), "options": complete(SettingsModel)}))
"""
_IMPORTED_ON_DEMAND = (
    "server.llama.loader",  # not needed by `check-config`
    "llama_cpp",
    "limits",  # when a key has limits
    "server.cli.model_commands",  # pull, list and rm
    "server.options.reference",  # --help
    "server.hub.child",
    "huggingface_hub",
    "jinja2",  # in template sandboxes
    "tqdm",
    "jsonschema",
)
_NOT_BEFORE_A_LOAD = (
    *("fastapi", "httpcore2", "prometheus_client", "llama_cpp.llama", "diskcache"),
    *_IMPORTED_ON_DEMAND[3:],
)
_DEPENDENCIES = frozenset(
    (
        *("numpy", "pydantic", "uvicorn", "httpcore2", "jinja2", "yaml", "websockets", "anyio", "click"),
        *("h11", "starlette", "tqdm", "fastapi", "opentelemetry", "cryptography", "prometheus_client", "llguidance"),
    )
)


def test_server_imports_few_modules_before_it_listens() -> None:
    done = subprocess.run([sys.executable, "-c", _PRINT_IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not set(_IMPORTED_ON_DEMAND) & set(found["modules"])
    own = [name for name in found["modules"] if name.partition(".")[0] == "server"]
    assert len(own) < 360  # each costs one to five milliseconds of CPU time at every start
    # Other packages, such as rich, are installed for development only.
    dependencies = [name for name in found["modules"] if name.partition(".")[0] in _DEPENDENCIES]
    assert len(dependencies) < 490
    assert found["bodies"] == []  # pydantic models of bodies are completed at an API's first request
    assert found["options"] == ["ModelDefaults", "ServerSettings"]  # not their base classes


def test_model_load_starts_before_the_application_is_imported() -> None:
    program = "import sys, server.cli.command_line, server.model_pool, server.llama.loader; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert not set(_NOT_BEFORE_A_LOAD) & set(found)
    assert sum(name.partition(".")[0] == "server" for name in found) < 210


@pytest.mark.parametrize("host", [("127.0.0.1",), ("localhost", "::1"), ("/run/llamapool.sock",)])
@pytest.mark.parametrize("closed", [False, True])
def test_loopback_hosts_and_unix_sockets_need_no_key(host: tuple[str, ...], closed: bool) -> None:
    assert check_reach(ServerSettings(host=host, closed=closed)) == []


@pytest.mark.parametrize("host", [("0.0.0.0",), ("127.0.0.1", "::"), ("llm.example",)])
def test_public_hosts_without_a_key_warn_or_fail(host: tuple[str, ...]) -> None:
    (warning,) = check_reach(ServerSettings(host=host, port=9000))
    assert warning.startswith(f"ANYONE WHO REACHES {host[-1]} PORT 9000 MAY USE THIS SERVER")
    with pytest.raises(ConfigError, match=r"others can reach .*, and there is no key; give LLAMA_API_KEY"):
        check_reach(ServerSettings(host=host, closed=True))
    assert check_reach(ServerSettings(host=host, closed=True, api_keys=("secret",))) == []


def test_admin_host_without_a_key_warns_if_admin_port_is_set() -> None:
    assert check_reach(ServerSettings(admin_host="0.0.0.0")) == []
    (warning,) = check_reach(ServerSettings(admin_host="0.0.0.0", admin_port=9000))
    assert "ANYONE WHO REACHES 0.0.0.0" in warning


def test_unknown_host_names_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for host, option in (("a", "host"), (f"{tmp_path}/s.sock", "admin_host")):
        with pytest.raises(ConfigError, match=rf"^server\.{option}: 'a' is not an address of this machine: unknown"):
            open_listeners(ServerSettings(host=(host,), admin_host="a", admin_port=9000))


def test_admin_port_has_its_own_listener() -> None:
    port = free_port()
    listeners = open_listeners(ServerSettings(port=0, admin_port=port))
    try:
        assert [listener.url.rpartition(":")[2] == str(port) for listener in listeners] == [False, True]
    finally:
        for listener in listeners:
            listener.close()
    with pytest.raises(ValueError, match="admin_port and port must differ"):
        ServerSettings(port=port, admin_port=port)


class _LoadingServer(QuietHandler):
    def reply(self) -> None:
        self.answer(503, self.path.encode())


def test_health_fails_while_the_server_returns_503(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    with serving(_LoadingServer) as port:
        file.write_text(f"http://0.0.0.0:{port}/llm\nhttp://127.0.0.1:1\n")
        assert main(["health", str(file)]) == 1
    assert capsys.readouterr().out == "503 /llm/health\n"


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:1\n", "nonsense\n", "http+unix:///nowhere/x.sock\n"])
def test_health_fails_if_no_listed_url_answers(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "addresses"
    file.write_text(text)
    assert main(["health", str(file)]) == 1
    assert str(file) in capsys.readouterr().out


def test_health_finds_a_unix_socket_below_a_folder_with_sock_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.sockets" / "b.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(TimeoutError):
            get_health(f"http+unix://{path}/llm", 0.01)


def test_health_reads_the_file_that_the_variable_names(
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
