"""The command line: help, check-config, fit, generated files, listening sockets. A mistake is one line and status 2."""

import asyncio
import gc
import json
import logging
import logging.config
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from server import cli
from server.cli.command_line import COMMANDS, effective_yaml, main
from server.cli.docs import generated_files
from server.cli.health import get_health
from server.errors import ConfigError
from server.listen import open_listeners
from server.options.server import ServerSettings
from server.options.table import TABLE
from server.settings import load_settings
from server.uvicorn_config import check_certificate
from tests.support.ggufs import PLAIN, TinyModel, gguf_file, lora_file

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "config" / "default.yaml")
SCHEMA = json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8"))
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("LLAMAPOOL_", "LLAMA_ARG_", "LLAMA_API_KEY")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("flag", ["-h", "--help", "--usage"])
def test_help_lists_every_flag_in_its_group(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    printed = capsys.readouterr().out
    for group in ("General:", "Model:", "Context and memory:", "Sampling defaults:", "Server:", "Logging:"):
        assert group in printed
    assert [each for each in TABLE.by_flag if each not in printed] == []


def test_cache_list_names_the_empty_cache_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    assert main(["-cl"]) == 0
    assert f"no models in {tmp_path}" in capsys.readouterr().err


def test_bash_completion_script_completes_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion-bash"]) == 0
    complete = 'COMP_WORDS=(llamapool --ctx-s); COMP_CWORD=1; _llamapool; echo "${COMPREPLY[@]}"'
    script = capsys.readouterr().out + complete
    completed = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
    assert completed == "--ctx-size\n"


def test_reuse_port_lets_two_servers_share_a_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = ServerSettings(port=port, reuse_port=True)
    first, second = open_listeners(shared), open_listeners(shared)
    for listener in (*first, *second):
        listener.socket.listen()
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: it is in use"):
        open_listeners(ServerSettings(port=port))
    for listener in (*first, *second):
        listener.close()


def test_bench_parses_its_own_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    assert "share 700 words" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (TinyModel(n_embd=128), "has another shape than the model's"),
        (TinyModel(arch="qwen3"), "is an adapter for the architecture 'llama', the model's is 'qwen3'"),
        (PLAIN, ""),
    ],
)
def test_check_config_compares_adapters_with_their_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: TinyModel, problem: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  a:\n    path: {gguf_file(tmp_path, model)}\n    lora: {lora_file(tmp_path)}\n")
    assert main(["check-config", str(config)]) == (2 if problem else 0)
    error = capsys.readouterr().err
    assert problem in error
    assert f"{config}:4: models.a.lora: {tmp_path}/lora.gguf: " * bool(problem) in error


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("llamapool ")


def test_check_config_prints_the_merged_settings_with_keys_masked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(f"server: {{api_keys: [hidden]}}\nmodels: {{a: {{path: {model.name}, n_ctx: 5}}}}")
    monkeypatch.setenv("LLAMAPOOL_MODELS__A__SEED", "9")
    assert main(["check-config", str(config), "--port", "99"]) == 0
    printed = capsys.readouterr().out
    assert "hidden" not in printed
    found = yaml.safe_load(printed)
    assert found["server"]["api_keys"] == ["****"]
    assert found["server"]["port"] == 99
    assert (found["models"]["a"]["path"], found["models"]["a"]["n_ctx"]) == (str(model.resolve()), 5)
    assert found["models"]["a"]["seed"] == 9
    assert set(found["server"]) == {"api_keys", "port"}, "defaults are omitted"


def test_check_config_masks_passwords_and_tokens_in_urls(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    model = {
        "model_url": "https://alice:hidden@models.example/o/m.gguf?token=hidden&download=hidden",
        "mmproj_url": "https://models.example/mmproj.gguf?hidden",
        "chat_template": "see https://a:b@c/?d=e",
    }
    mcp = {
        "files": {"command": "mcp-files", "env": {"TOKEN": "hidden"}},
        "web": {"url": "https://m.example/mcp", "headers": {"Authorization": "Bearer hidden"}},
    }
    server = {"slot_save_path": "sftp://bob:hidden@store/slots", "hf_token": "hidden", "mcp_servers": mcp}
    config.write_text(yaml.safe_dump({"server": server, "models": {"a": model}}))
    settings = load_settings([], {}, config)
    printed = effective_yaml(settings)
    assert "hidden" not in printed
    found = yaml.safe_load(printed)
    assert found["server"]["slot_save_path"] == "sftp://****@store/slots"
    assert found["server"]["mcp_servers"]["files"] == {"command": "mcp-files", "env": {"TOKEN": "****"}}
    assert found["models"]["a"]["model_url"] == "https://****@models.example/o/m.gguf?token=****&download=****"
    assert found["models"]["a"]["mmproj_url"] == "https://models.example/mmproj.gguf?****"
    assert found["models"]["a"]["chat_template"] == model["chat_template"], "not a URL"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check-config"], "check-config needs a file"),
        (["check-config", "no.yaml"], "no.yaml: no such file"),
        (["serve", "--bogus"], "unknown argument '--bogus'"),
        (["-m", "nothere.gguf"], "-m: no such file: nothere.gguf; check the path"),
        (["serv"], "unknown argument 'serv'"),
        (["docs", "x"], "docs: unknown argument 'x'; write llamapool docs"),
        (["fit", "none", "--config", CONFIG], "'none' is neither a GGUF file nor a configured model; known: demo, "),
    ],
)
def test_mistakes_in_arguments_exit_with_one_line_and_status_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"llamapool: {expected}")
    assert printed.err.count("\n") == 1


@pytest.mark.slow
def test_python_m_server_exits_with_one_line_and_status_2() -> None:
    command = [sys.executable, "-m", "server", "--port", "x", "-m", "y.gguf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("llamapool: --port: invalid value 'x': should be a valid integer")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_shuts_down_cleanly_on_a_signal(
    number: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake application raises the signal itself after its startup."""

    async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        asyncio.get_running_loop().call_soon(signal.raise_signal, number)
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr("server.app.create_app", lambda settings, **_: application)
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    path = tmp_path / "pool.sock"
    try:
        assert main(["-m", str(model), "--host", str(path)]) == 0
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0  # the garbage collector skips the application's objects
    finally:
        gc.unfreeze()
        for name, handler in before.items():
            signal.signal(name, handler)
    assert not path.exists()


def test_sigterm_while_the_application_is_imported_ends_cleanly(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr("server.cli.command_line._create_server", lambda *_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    path, address = tmp_path / "pool.sock", tmp_path / "address"
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main(["-m", str(model), "--host", str(path), "--address-file", str(address)])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (ended.value.code, path.exists(), address.exists()) == (0, False, False)


@pytest.mark.parametrize("path", sorted(generated_files()))
def test_generated_files_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == generated_files()[path], "run: llamapool docs --write"


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_match_the_schema_and_load(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), SCHEMA)
    assert load_settings([], {}, path).models


@pytest.mark.parametrize(
    "config", [{"servr": {}}, {"server": {"port": 70000}}, {"models": {"a": {}}}, {"defaults": {"path": "x"}}]
)
def test_schema_rejects_invalid_configurations(config: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, SCHEMA)


numbers = st.integers(1, 255)


@examples(deadline=None, max_examples=60)
@given(port=numbers, n_ctx=numbers, bias=st.floats(-9, 9), breaker=st.text(min_size=1).filter(lambda x: x != "none"))
def test_check_config_output_loads_as_the_same_settings(
    port: int, n_ctx: int, bias: float, breaker: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("p")
    first = folder / "first.yaml"
    model = {"path": "x.gguf", "n_ctx": n_ctx, "logit_bias": {5: bias}, "dry_sequence_breakers": [breaker]}
    model |= {"lora": ["a.gguf", {"path": "b.gguf", "scale": 0.5}], "control_vectors": "c.gguf"}
    document = {"server": {"port": port}, "defaults": {"seed": n_ctx}, "models": {"a.b-c": model}}
    first.write_text(yaml.safe_dump(document), encoding="utf-8")
    settings = load_settings([], {}, first)
    second = folder / "second.yaml"
    second.write_text(effective_yaml(settings), encoding="utf-8")
    again = load_settings([], {}, second)
    assert (again.server, again.models) == (settings.server, settings.models)


@pytest.mark.slow
def test_help_succeeds_when_the_reader_of_the_pipe_has_closed_it() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "server", "--help"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, timeout=200, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_serve_reports_a_broken_pipe_of_the_server_as_a_failure(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(*_: object) -> bool:
        raise BrokenPipeError

    monkeypatch.setattr("server.cli.command_line._serve", end)
    monkeypatch.setattr("server.logs.configure", lambda _: None)
    with pytest.raises(RuntimeError, match="the server has failed"):
        main(["serve", "-m", str(model), "--port", "0"])


def test_an_interrupted_command_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "fit", interrupted)
    assert main(["fit"]) == 130


def test_listeners_report_the_url_of_each_host_and_remove_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    first, second = open_listeners(ServerSettings(host=("127.0.0.1", str(path)), port=0, api_prefix="/llm"))
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/llm", first.url)
    assert second.url == f"http+unix://{path}/llm"
    for listener in (first, second, second):
        listener.close()
    assert not path.exists()


@pytest.mark.parametrize("prefix", ["", "/x.sock"])
def test_health_finds_a_unix_socket_with_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    (tmp_path / "dir.sock").mkdir()
    monkeypatch.chdir(tmp_path / "dir.sock")
    [listener] = open_listeners(ServerSettings(host=("run.sock",), api_prefix=prefix))
    listener.socket.setblocking(True)
    listener.socket.listen()

    def answer() -> bytes:
        with listener.socket.accept()[0] as connection:
            request = connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return request

    with ThreadPoolExecutor(1) as thread:
        request = thread.submit(answer)
        monkeypatch.chdir(ROOT)
        try:
            assert get_health(listener.url) == (200, "ok")
            assert request.result().startswith(f"GET {prefix}/health ".encode())
        finally:
            listener.socket.shutdown(socket.SHUT_RDWR)
    monkeypatch.chdir(tmp_path / "dir.sock")
    listener.close()
    assert not (tmp_path / "dir.sock" / "run.sock").exists()


def test_stale_unix_sockets_are_replaced_and_those_in_use_are_not(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    [listener] = open_listeners(ServerSettings(host=(str(path),)))
    listener.socket.listen()
    with pytest.raises(ConfigError, match="it is in use"):
        open_listeners(ServerSettings(host=(str(path),)))
    assert path.exists()
    listener.close()


def test_invalid_and_foreign_hosts_raise_config_errors(tmp_path: Path) -> None:
    for host in ("a..b", "a" * 64, f"{tmp_path}/{'a' * 108}.sock"):
        with pytest.raises(ConfigError, match="too long"):
            open_listeners(ServerSettings(host=(host,)))
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        open_listeners(ServerSettings(host=("192.0.2.1",), port=0))
    with pytest.raises(ConfigError, match=r"server.port 0 needs a single TCP address"):
        open_listeners(ServerSettings(host=("127.0.0.1", "127.0.0.2"), port=0))


def test_invalid_and_missing_certificates_name_both_options(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("no key")
    for name in ("k", "missing"):
        with pytest.raises(ConfigError, match=r"server.ssl_cert_file, server.ssl_key_file: .* check these files"):
            check_certificate(ServerSettings(ssl_key_file=tmp_path / name, ssl_cert_file=tmp_path / name))


def test_unwritable_log_files_name_their_option(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, name in (("--log-file", "log_file"), ("--audit-log", "audit_log")):
        assert main(["-m", str(model), flag, str(tmp_path / "no" / "log")]) == 2
        assert f"server.{name}: {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("log_file: no/log", "server.log_file: {}/no/log: No such file or directory; check the path"),
        ("audit_log: .", "server.audit_log: {}: Is a directory; check the path"),
        ("reasoning_key_file: .", "server.reasoning_key_file: {}: Is a directory"),
        ("slot_save_path: ., slot_save_secret_file: none", "server.slot_save_secret_file: No such file"),
        ("slot_save_path: nothing://b/x", "nothing://b/x: Protocol not known"),
        ("mcp_api: [nolabel]", "no MCP server is called nolabel"),
        ("otel: true", "server.otel: "),
        ("kv_events: tcp://*:5557", "server.kv_events: "),
    ],
)
def test_checks_refuse_what_serve_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: str, expected: str
) -> None:
    for name in ("opentelemetry", "zmq"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("server.telemetry.tracing", "server.telemetry.kv_events"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    config = tmp_path / "pool.yaml"
    config.write_text(f"server: {{{options}}}\nmodels: {{demo: {{path: {ROOT}/models/demo.gguf}}}}")
    assert main(["check-config", str(config)]) == 2
    assert expected.format(tmp_path) in capsys.readouterr().err
    assert main(["doctor", "--config", str(config), "--port", "0"]) == 1
    assert expected.format(tmp_path) in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["pool.yaml"]


def test_fit_prints_the_memory_use_of_a_file_and_of_a_configured_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(ROOT / "models" / "demo.gguf"), "-np", "1", "-c", "512"]) == 0
    printed = capsys.readouterr().out
    assert "512 tokens of context for 1 slot\n" in printed
    assert "other contexts" in printed
    assert main(["fit", "demo", "--config", CONFIG]) == 0
    assert capsys.readouterr().out.startswith("demo: ")


def test_fit_and_check_config_respect_the_memory_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo = ROOT / "models" / "demo.gguf"
    command = ["fit", str(demo), "-np", "1", "--fit-ctx", "256"]
    assert main(command) == 0
    total_mib = float(re.findall(r"([\d.]+) MiB", capsys.readouterr().out.partition("models may take\n")[2])[3])
    limit_mib = int(total_mib) - 1
    assert main([*command, "--memory", f"CPU={limit_mib}MiB"]) == 0
    printed = capsys.readouterr().out
    assert "tokens instead of" in printed
    assert "does not fit" in printed.partition("other contexts")[2]
    assert printed.partition("models may take\n")[2].splitlines()[0].endswith(f" {limit_mib}.0 MiB")
    assert main(["fit", str(demo), "-np", "1", "--memory", "CPU=1MiB"]) == 1
    assert "1.0 MiB are left for it" in capsys.readouterr().out
    config = tmp_path / "config.yaml"
    config.write_text(f"server: {{memory: CPU=1MiB}}\nmodels: {{demo: {{path: {demo}}}}}")
    assert main(["check-config", str(config)]) == 0
    assert "1.0 MiB are left for it" in capsys.readouterr().out


def test_check_config_prints_memory_use_as_yaml_comments(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    demo = ROOT / "models" / "demo.gguf"
    config.write_text(f"models: {{a: {{path: {demo}}}, b: {{path: {model}}}}}")
    assert main(["check-config", str(config)]) == 0
    printed = capsys.readouterr().out
    assert set(yaml.safe_load(printed)["models"]) == {"a", "b"}
    assert "# a: " in printed
    assert "#   can't be loaded: " in printed
