"""Reloads of configuration, keys and certificates: on SIGHUP, and when a watched file changes."""

import asyncio
import os
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.app import create_app
from server.options.server import ServerSettings
from server.reload import read_all_keys
from server.settings import Settings, load_settings
from server.transport.keys import Key, KeyStore
from tests.api.conftest import Api, GoLive, Live, running, until
from tests.support.certificates import NEEDS_OPENSSL, make_certificate
from tests.support.fakes import FakeLoader

GGUF = b"GGUF" + bytes(50)
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handle SIGHUP as a server without a terminal and without nohup, and poll watched files often."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr("server.transport.early_signals._has_terminal", lambda: False)
    monkeypatch.setattr("server.reload.EVERY_S", 0.005)
    yield
    signal.signal(signal.SIGHUP, before)


def write_config(folder: Path, text: str) -> Path:
    part, file = folder / "part", folder / "config.yaml"
    part.write_text(text)
    part.replace(file)
    return file


@asynccontextmanager
async def serve_config(folder: Path, text: str, changes: Sequence[Callable[[], object]] = ()) -> AsyncIterator[Api]:
    """Run ``llamapool --config FILE`` with a fake loader. `changes` are called after each read of the file."""
    for name in ("a", "b"):
        (folder / f"{name}.gguf").write_bytes(GGUF)
    arguments = ["--config", str(write_config(folder, text))]

    def reread() -> Settings:
        found = load_settings(arguments, {"LLAMA_CACHE": str(folder / "cache")})
        for change in changes:
            change()
        return found

    loader = FakeLoader()
    app = create_app(reread(), loader=loader, reread=reread)
    async with running(app, loader) as api:
        await api.settled()
        yield api


def config_text(folder: Path, *names: str, extra: str = "") -> str:
    rows = "".join(f"  {name}: {{path: {folder}/{name}.gguf, load: startup}}\n" for name in names)
    return f"server: {{models_cache: false{extra}}}\nmodels:\n{rows}"


async def sighup(caplog: pytest.LogCaptureFixture, logged: str) -> None:
    """Send SIGHUP and wait until the log contains `logged`."""
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: logged in caplog.text)


async def model_ids(api: Api) -> list[str]:
    return [state.spec.id for state in api.pool.states()]


async def test_name_that_becomes_an_alias_no_longer_selects_a_lora_adapter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "one.gguf").write_bytes(GGUF)
    text = config_text(tmp_path, "a", extra=f", lora_dir: {tmp_path}")
    async with serve_config(tmp_path, text) as api:

        async def reply(model: str) -> object:
            body = {"model": model, "prompt": "Hi", "n_predict": 12, "temperature": 0}
            return (await api.expect("POST /completion", body)).json()["content"]

        await api.expect("POST /v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "one.gguf"})
        base = await reply("a")
        assert await reply("poet") != base
        write_config(tmp_path, text.replace("load: startup", "load: startup, aliases: [poet]"))
        await sighup(caplog, "reloaded")
        assert await reply("poet") == base


async def test_sighup_reloads_models_and_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    extra = f", api_key_file: {tmp_path}/keys"
    (tmp_path / "keys").write_text("one\n")
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=extra)) as api:
        weights = api.pool.states()[0].loaded
        write_config(tmp_path, config_text(tmp_path, "a", "b", extra=extra))
        await sighup(caplog, "reloaded: 1 keys, 2 models")
        assert await model_ids(api) == ["a", "b"]
        assert api.pool.states()[0].loaded is weights  # not reloaded
        write_config(tmp_path, config_text(tmp_path, "b", extra=extra))
        await sighup(caplog, "reloaded: 1 keys, 1 models")
        assert await model_ids(api) == ["b"]
        await until(lambda: api.loader.loaded[0].closed)


async def test_key_file_that_a_reload_names_is_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read outside the event loop's thread, because a long file would block the event loop."""
    caplog.set_level("INFO")
    threads = set[threading.Thread]()

    def read(server: ServerSettings) -> list[Key]:
        threads.add(threading.current_thread())
        return read_all_keys(server)

    extra = f", api_key_file: {tmp_path}/keys"
    (tmp_path / "keys").write_text("one\n")
    (tmp_path / "moved").write_text("one\ntwo\n")
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=extra)) as api:
        monkeypatch.setattr("server.reload.read_all_keys", read)
        watched = f"watch_config: true, models_preset: {tmp_path}/preset.ini"
        (tmp_path / "preset.ini").touch()
        extra = f", api_key_file: {tmp_path}/moved, {watched}"
        write_config(tmp_path, config_text(tmp_path, "a", extra=extra))
        await sighup(caplog, "reloaded: 2 keys, 1 models")
        await until(lambda: "the API keys were read again: there are 2" in caplog.text)  # the path changed
        (tmp_path / "moved").write_text("two\n")
        await until(lambda: "the API keys were read again: there are 1" in caplog.text)
        await api.expect("GET /v1/models", headers={"X-Api-Key": "two"})
        write_config(tmp_path, config_text(tmp_path, "a", "b", extra=extra))
        await until(lambda: "reloaded: 1 keys, 2 models" in caplog.text)
        assert caplog.text.count("reloaded: ") <= 3  # one for each change, and one for the preset that the first names
    assert threading.current_thread() not in threads


async def test_keys_read_before_a_reload_do_not_replace_keys_of_the_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a revoked key would become valid again."""
    caplog.set_level("INFO")
    n_read, replaced = 0, threading.Event()

    def read(server: ServerSettings) -> list[Key]:
        nonlocal n_read
        n_read, found = n_read + 1, read_all_keys(server)
        if n_read == 1:
            write_config(tmp_path, config_text(tmp_path, "a", extra=extra))
            os.kill(os.getpid(), signal.SIGHUP)
            replaced.wait(0.5)  # the reload must wait for this read
        return found

    def replace(store: KeyStore, keys: Iterable[Key]) -> None:
        replace_keys(store, keys)
        replaced.set()

    replace_keys, extra = KeyStore.replace, f", api_key_file: {tmp_path}/keys"
    (tmp_path / "keys").write_text("one\n")
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=f"{extra}, api_keys: [revoked]")) as api:
        monkeypatch.setattr("server.reload.read_all_keys", read)
        monkeypatch.setattr(KeyStore, "replace", replace)
        (tmp_path / "keys").write_text("one\ntwo\n")
        await until(lambda: "reloaded: " in caplog.text and "the API keys were read again: " in caplog.text)
        for key, status in (("revoked", 401), ("two", 200)):
            await api.expect("GET /v1/models", None, status, headers={"X-Api-Key": key})


async def test_key_added_while_the_server_starts_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "a.gguf").write_bytes(GGUF)
    (tmp_path / "keys").write_text("one\n")
    config = write_config(tmp_path, config_text(tmp_path, "a", extra=f", api_key_file: {tmp_path}/keys"))
    loader = FakeLoader()
    app = create_app(load_settings(["--config", str(config)], {}), loader=loader)
    (tmp_path / "keys").write_text("one\ntwo\n")
    async with running(app, loader):
        await until(lambda: "the API keys were read again: there are 2" in caplog.text)


async def test_sighup_reloads_only_changed_startup_models(tmp_path: Path) -> None:
    first = config_text(tmp_path, "a", "b")
    async with serve_config(tmp_path, first) as api:
        changed, unchanged = [state.loaded for state in api.pool.states()]
        write_config(tmp_path, first.replace("a.gguf,", "a.gguf, n_ctx: 512,"))
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: api.pool.states()[0].loaded not in (None, changed))
        assert api.pool.states()[1].loaded is unchanged


@pytest.mark.parametrize("broken", ["models: {a: {path: 1, nonsense: 2}}", "models: [", "server: {port: x}"])
async def test_reload_of_an_invalid_configuration_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    async with serve_config(tmp_path, config_text(tmp_path, "a")) as api:
        write_config(tmp_path, broken)
        await sighup(caplog, "nothing was reloaded: ")
        assert await model_ids(api) == ["a"]
        await api.expect("POST /v1/chat/completions", CHAT)


async def test_reload_without_a_readable_key_file_adds_no_models(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text("one\n")
    extra = f", api_key_file: {tmp_path}/keys"
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=extra)) as api:
        (tmp_path / "keys").unlink()
        write_config(tmp_path, config_text(tmp_path, "b", extra=extra))
        await sighup(caplog, "nothing was reloaded: ")
        assert await model_ids(api) == ["a"]
        await api.expect("GET /v1/models", headers={"X-Api-Key": "one"})


async def test_reload_takes_keys_and_models_from_one_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file may change again after the read. Downloads and removals wait for the lock before they read it."""
    caplog.set_level("INFO")
    (tmp_path / "one").write_text("one\n")
    (tmp_path / "two").write_text("two\n")
    changes: list[Callable[[], object]] = []
    first = config_text(tmp_path, "a", extra=f", api_key_file: {tmp_path}/one")
    async with serve_config(tmp_path, first, changes) as api:
        broken = "models: ["
        locked: list[bool] = []
        changes.append(lambda: locked.append(api.pool.reloading.locked()))
        changes.append(partial(write_config, tmp_path, broken))
        write_config(tmp_path, config_text(tmp_path, "b", extra=f", api_key_file: {tmp_path}/two"))
        await sighup(caplog, "reloaded: ")
        assert "nothing was reloaded: " not in caplog.text
        for key, status in (("one", 401), ("two", 200)):
            await api.expect("GET /v1/models", None, status, headers={"X-Api-Key": key})
        assert await model_ids(api) == ["b"]
        assert locked == [True]


async def test_reload_logs_settings_that_need_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "preset.ini").touch()
    (tmp_path / "more").mkdir()
    watched = f"watch_config: true, models_preset: {tmp_path}/preset.ini, models_dir: {tmp_path}/more"
    async with serve_config(tmp_path, config_text(tmp_path, "a")):
        write_config(tmp_path, config_text(tmp_path, "a", extra=f", metrics: true, api_keys: [one], {watched}"))
        await sighup(caplog, "what changed in server.metrics counts from the next start")
        await until(lambda: "stays open to all until the next start" in caplog.text)


async def test_preset_that_changes_during_the_reload_that_names_it_is_reloaded(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    preset.touch()
    changes: list[Callable[[], object]] = []
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=", watch_config: true"), changes) as api:
        changes.append(partial(preset.write_text, f"[b]\nmodel = {tmp_path}/b.gguf\n"))
        write_config(tmp_path, config_text(tmp_path, "a", extra=f", watch_config: true, models_preset: {preset}"))
        await until(lambda: len(api.pool.states()) == 2)


async def test_watch_config_reloads_a_changed_configuration(tmp_path: Path) -> None:
    extra = ", watch_config: true"
    async with serve_config(tmp_path, config_text(tmp_path, "a", extra=extra)) as api:
        write_config(tmp_path, config_text(tmp_path, "b", extra=extra))
        await until(lambda: [state.spec.id for state in api.pool.states()] == ["b"])


# ---- TLS


async def served_certificate(server: Live) -> str:
    """Return the certificate that the server presents to a new connection, as PEM text."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(found)


def tls_settings(key: Path, certificate: Path, owner: str) -> dict[str, Any]:
    """Return TLS settings of the server, or options of uvicorn."""
    if owner == "uvicorn":
        return {"uvicorn": {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}}
    return {"server": {"ssl_key_file": key, "ssl_cert_file": certificate}}


@NEEDS_OPENSSL
@pytest.mark.parametrize("owner", ["uvicorn", "server"])
async def test_server_with_tls_reloads_on_sighup(
    live: GoLive, tmp_path: Path, caplog: pytest.LogCaptureFixture, owner: str
) -> None:
    caplog.set_level("INFO")
    key, certificate = make_certificate(tmp_path / "one")
    (tmp_path / "a.gguf").write_bytes(GGUF)
    models = {"a": {"path": tmp_path / "a.gguf"}}
    async with live(models=models, **tls_settings(key, certificate, owner)) as server:
        assert await served_certificate(server) == certificate.read_text()
        await sighup(caplog, "reloaded: ")
        assert "nothing was reloaded" not in caplog.text


@NEEDS_OPENSSL
@pytest.mark.parametrize("owner", ["uvicorn", "server"])
async def test_certificate_that_changes_while_it_is_read_is_read_again(
    live: GoLive, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    caplog.set_level("INFO")
    key, certificate = make_certificate(tmp_path / "one")
    new_key, new = make_certificate(tmp_path / "two")
    load = ssl.SSLContext.load_cert_chain
    read: list[bool] = []

    def load_then_change(context: ssl.SSLContext, *arguments: Any, **options: Any) -> None:
        load(context, *arguments, **options)
        if not read:
            read.append(True)
            key.write_text("no key")

    async with live(**tls_settings(key, certificate, owner)) as server:
        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_then_change)
        key.write_bytes(new_key.read_bytes())  # the old pair is served until the certificate is written
        certificate.write_bytes(new.read_bytes())
        await until(lambda: "the certificate was read again" in caplog.text)
        assert await served_certificate(server) == new.read_text()
        await until(lambda: "the certificate is as it was" in caplog.text)
        assert await served_certificate(server) == new.read_text()
        caplog.clear()
        key.write_bytes(new_key.read_bytes())
        await until(lambda: "the certificate was read again" in caplog.text)
