"""The command line: help, check-config, generated files, and that mistakes are one line and status 2."""

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
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from server.cli.command_line import COMMANDS, effective_yaml, main
from server.cli.docs import generated_files
from server.errors import ConfigError
from server.listen import open_listeners
from server.options.server import ServerSettings
from server.options.table import TABLE
from server.settings import load_settings
from server.uvicorn_config import check_certificate
from tests.support.ggufs import PLAIN, TinyModel, gguf_file, lora_file

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "config" / "default.yaml")
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


@pytest.mark.parametrize("word", ["-h", "--help", "--usage"])
def test_help_groups_every_flag(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    page = capsys.readouterr().out
    for group in ("General:", "Model:", "Context and memory:", "Sampling defaults:", "Server:", "Logging:"):
        assert group in page
    assert [flag for flag in TABLE.by_flag if flag not in page] == []


def test_the_cache_is_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    assert main(["-cl"]) == 0
    assert f"no models in {tmp_path}" in capsys.readouterr().err


def test_bash_completes_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion-bash"]) == 0
    script = capsys.readouterr().out
    asked = script + 'COMP_WORDS=(llamapool --ctx-s); COMP_CWORD=1; _llamapool; echo "${COMPREPLY[@]}"'
    said = subprocess.run(["bash", "-c", asked], check=True, capture_output=True, text=True).stdout
    assert said == "--ctx-size\n"


def test_a_port_may_be_shared() -> None:
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


def test_bench_has_a_command_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_check_config_prints_what_it_comes_to_with_keys_masked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(f"server: {{api_keys: [hidden]}}\nmodels: {{a: {{path: {model.name}, n_ctx: 5}}}}")
    monkeypatch.setenv("LLAMAPOOL_MODELS__A__SEED", "9")
    assert main(["check-config", str(config), "--port", "99"]) == 0
    printed = capsys.readouterr().out
    found = yaml.safe_load(printed)
    assert "hidden" not in printed
    assert found["server"]["api_keys"] == ["****"]
    assert found["server"]["port"] == 99
    assert (found["models"]["a"]["path"], found["models"]["a"]["n_ctx"]) == (str(model.resolve()), 5)
    assert found["models"]["a"]["seed"] == 9
    assert set(found["server"]) == {"api_keys", "port"}, "what nobody has set is not in the way"


def test_check_config_masks_what_addresses_hold_of_passwords_and_tokens(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    model = {
        "model_url": "https://alice:hidden@models.example/o/m.gguf?token=hidden&download=hidden",
        "mmproj_url": "https://models.example/eyes.gguf?hidden",
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
    assert found["models"]["a"]["mmproj_url"] == "https://models.example/eyes.gguf?****"
    assert found["models"]["a"]["chat_template"] == model["chat_template"], "it is no address"


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_a_mistake_is_one_line_and_status_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"llamapool: {expected}")
    assert printed.err.count("\n") == 1


@pytest.mark.slow
def test_python_m_server_ends_with_one_line_and_status_2() -> None:
    command = [sys.executable, "-m", "server", "--port", "x", "-m", "y.gguf"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("llamapool: --port: invalid value 'x': should be a valid integer")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly_on_a_signal(
    number: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an application that asks for the signal itself, once it has started."""

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
        assert gc.get_freeze_count() > 0  # the application is not searched for garbage
    finally:
        gc.unfreeze()
        for name, handler in before.items():
            signal.signal(name, handler)
    assert not path.exists()


@pytest.mark.parametrize("path", sorted(generated_files()))
def test_generated_files_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == generated_files()[path], "run: llamapool docs --write"


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_the_shipped_configurations_follow_the_schema_and_load(path: Path) -> None:
    schema = json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    assert load_settings([], {}, path).models


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    schema = json.loads((ROOT / "config" / "schema.json").read_text(encoding="utf-8"))
    refused: list[Any] = [
        {"servr": {}},
        {"server": {"port": 70000}},
        {"models": {"a": {}}},
        {"defaults": {"path": "x"}},
    ]
    for wrong in refused:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


numbers = st.integers(1, 255)


@examples(deadline=None, max_examples=60)
@given(port=numbers, n_ctx=numbers, bias=st.floats(-9, 9), breaker=st.text(min_size=1).filter(lambda x: x != "none"))
def test_what_check_config_prints_gives_the_same_settings(
    port: int, n_ctx: int, bias: float, breaker: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("p")
    first = folder / "first.yaml"
    model = {"path": "x.gguf", "n_ctx": n_ctx, "logit_bias": {5: bias}, "dry_sequence_breakers": [breaker]}
    document = {"server": {"port": port}, "defaults": {"seed": n_ctx}, "models": {"a.b-c": model}}
    first.write_text(yaml.safe_dump(document), encoding="utf-8")
    settings = load_settings([], {}, first)
    second = folder / "second.yaml"
    second.write_text(effective_yaml(settings), encoding="utf-8")
    again = load_settings([], {}, second)
    assert (again.server, again.models) == (settings.server, settings.models)


@pytest.mark.slow
def test_who_reads_what_is_printed_may_leave() -> None:
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


def test_a_server_that_ends_by_a_broken_pipe_has_failed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(*_: object) -> bool:
        raise BrokenPipeError

    monkeypatch.setattr("server.cli.command_line._serve", end)
    monkeypatch.setattr("server.logs.configure", lambda _: None)
    with pytest.raises(RuntimeError, match="the server has failed"):
        main(["serve", "-m", str(model), "--port", "0"])


def test_an_interrupted_command_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "fit", interrupted)
    assert main(["fit"]) == 130


def test_sockets_of_several_hosts(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    first, second = open_listeners(ServerSettings(host=("127.0.0.1", str(path)), port=0, api_prefix="/llm"))
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/llm", first.url)
    assert second.url == f"http+unix://{path}/llm"
    for listener in (first, second, second):
        listener.close()
    assert not path.exists()


def test_a_unix_socket_that_is_stale_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    [listener] = open_listeners(ServerSettings(host=(str(path),)))
    listener.socket.listen()
    with pytest.raises(ConfigError, match="it is in use"):
        open_listeners(ServerSettings(host=(str(path),)))
    assert path.exists()
    listener.close()


def test_hosts_that_cannot_be_used(tmp_path: Path) -> None:
    for host in ("a..b", "a" * 64, f"{tmp_path}/{'a' * 108}.sock"):
        with pytest.raises(ConfigError, match="too long"):
            open_listeners(ServerSettings(host=(host,)))
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        open_listeners(ServerSettings(host=("192.0.2.1",), port=0))
    with pytest.raises(ConfigError, match=r"server.port 0 needs a single TCP address"):
        open_listeners(ServerSettings(host=("127.0.0.1", "127.0.0.2"), port=0))


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("no key")
    for name in ("k", "missing"):
        with pytest.raises(ConfigError, match=r"server.ssl_cert_file, server.ssl_key_file: .* check these files"):
            check_certificate(ServerSettings(ssl_key_file=tmp_path / name, ssl_cert_file=tmp_path / name))


def test_a_log_file_that_cannot_be_opened_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, name in (("--log-file", "log_file"), ("--audit-log", "audit_log")):
        assert main(["-m", str(model), flag, str(tmp_path / "no" / "log")]) == 2
        assert f"server.{name}: {tmp_path}" in capsys.readouterr().err


def test_fit_prints_what_a_model_takes_without_loading_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(ROOT / "models" / "demo.gguf"), "-np", "1", "-c", "512"]) == 0
    shown = capsys.readouterr().out
    assert "512 tokens of context for 1 slot\n" in shown
    assert "other contexts" in shown
    assert main(["fit", "demo", "--config", CONFIG]) == 0
    assert capsys.readouterr().out.startswith("demo: ")


def test_fit_and_check_config_keep_to_the_memory_that_models_may_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo = ROOT / "models" / "demo.gguf"
    command = ["fit", str(demo), "-np", "1", "--fit-ctx", "256"]
    assert main(command) == 0
    together = float(re.findall(r"([\d.]+) MiB", capsys.readouterr().out.partition("models may take\n")[2])[3])
    assert main([*command, "--memory", f"CPU={int(together) - 1}MiB"]) == 0
    shown = capsys.readouterr().out
    assert "tokens instead of" in shown
    assert "does not fit" in shown.partition("other contexts")[2]
    assert shown.partition("models may take\n")[2].splitlines()[0].endswith(f" {int(together) - 1}.0 MiB")
    assert main(["fit", str(demo), "-np", "1", "--memory", "CPU=1MiB"]) == 1
    assert "1.0 MiB are left for it" in capsys.readouterr().out
    config = tmp_path / "config.yaml"
    config.write_text(f"server: {{memory: CPU=1MiB}}\nmodels: {{demo: {{path: {demo}}}}}")
    assert main(["check-config", str(config)]) == 0
    assert "1.0 MiB are left for it" in capsys.readouterr().out


def test_check_config_prints_what_models_take_as_comments(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    demo = ROOT / "models" / "demo.gguf"
    config.write_text(f"models: {{a: {{path: {demo}}}, b: {{path: {model}}}}}")
    assert main(["check-config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert set(yaml.safe_load(shown)["models"]) == {"a", "b"}
    assert "# a: " in shown
    assert "#   can't be loaded: " in shown
