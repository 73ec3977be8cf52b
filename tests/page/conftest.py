"""The web page in a real browser, against real servers with the demo model: `make page`, not part of `make test`.

Needs Playwright's Python package and a Chromium of the system (``CHROMIUM`` names another one), or a Firefox that
``FIREFOX`` names. ``AXE_CORE`` is the file of axe-core, which checks accessibility.
"""

import hashlib
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.middleware.cors import CORSMiddleware

from tests.media_files import wav
from tests.support.mcp_server import Tools
from tests.support.real_server import ROOT, RealServer, llamapool_config

FIREFOX = os.environ.get("FIREFOX")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
KEY = "sk-of-the-tests"
DEMO = ROOT / "models" / "demo.gguf"
CONFIG = """
server:
  state: memory
  slot_save_path: {folder}
  tools: all
  log_bodies: true
models:
  demo:
    path: {demo}
    n_ctx: 16384
    n_parallel: 4
    context_shift: true
    load: startup
  other:
    path: {demo}
    n_ctx: 2048
  broken:
    path: {folder}/broken.gguf
  seeing:
    path: {demo}
    mmproj: {demo_eyes}
    n_ctx: 4096
"""
GUARDED = """
server:
  keys_file: {keys}
  metrics: true
models:
  demo:
    path: {demo}
    n_ctx: 4096
    n_parallel: 1
    max_queue: 1
    context_shift: true
    load: startup
"""
KEYS = """
keys:
  - name: tester
    hash: sha256:{hash}
    scopes: [infer, metrics, models, slots, lora, props]
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Open; one model is loaded, another one can be, a third one can't."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "broken.gguf").write_bytes(DEMO.read_bytes()[:4096])
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder, demo=DEMO, demo_eyes=DEMO.with_name("mmproj-demo.gguf")))
    with llamapool_config(config) as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """With a keys file, one slot, and room for one who waits."""
    with guarded_server(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@contextmanager
def guarded_server(folder: Path) -> Iterator[RealServer]:
    config, keys = folder / "guarded.yaml", folder / "keys.yaml"
    keys.write_text(KEYS.format(hash=hashlib.sha256(KEY.encode()).hexdigest()))
    config.write_text(GUARDED.format(keys=keys, demo=DEMO))
    with llamapool_config(config) as running:
        yield running


@contextmanager
def full_queue(guarded: RealServer) -> Iterator[None]:
    """Somebody writes, and somebody waits."""
    head = {"Authorization": f"Bearer {KEY}"}
    ids = ["the-one-that-writes", "the-one-that-waits"]

    def ask(name: str) -> None:
        body = {"model": "demo", "prompt": "Once upon a time", "ignore_eos": True, "n_predict": 10**6, "stream": True}
        guarded.request("POST", "/completion", body, headers=head | {"X-Conversation-Id": name})

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in ids]
    for thread, then in zip(threads, ("llamacpp:requests_processing 1", "llamacpp:requests_deferred 1"), strict=True):
        thread.start()
        while then not in guarded.request("GET", "/metrics", headers=head).body.decode():
            time.sleep(0.05)
    try:
        yield
    finally:
        for name in ids:
            guarded.request("DELETE", f"/v1/stream?conv_id={name}", headers=head)
        for thread in threads:
            thread.join()
        while "llamacpp:requests_processing 0" not in guarded.request("GET", "/metrics", headers=head).body.decode():
            time.sleep(0.05)


def tone() -> bytes:
    """Return a second of 440 Hz as WAV."""
    samples = (int(12000 * math.sin(2 * math.pi * 440 * i / 16000)) for i in range(16000))
    return wav(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return one browser for all tests: Chromium, or the Firefox that ``FIREFOX`` names, over WebDriver BiDi."""
    from playwright.sync_api import sync_playwright

    assert FIREFOX or CHROMIUM, "no Chromium is installed"
    if FIREFOX:
        os.environ["NODE_OPTIONS"] = f"--require={Path(__file__).with_name('firefox.cjs')}"
    with sync_playwright() as running:
        if FIREFOX:
            preferences: dict[str, str | float | bool] = {
                "media.navigator.streams.fake": True,
                "media.navigator.permission.disabled": True,
            }
            started = running.firefox.launch(
                executable_path=FIREFOX, channel="moz-firefox", firefox_user_prefs=preferences
            )
        else:
            microphone = tmp_path_factory.mktemp("microphone") / "tone.wav"
            microphone.write_bytes(tone())
            fakes = ("device-for-media-stream", "ui-for-media-stream")
            arguments = [f"--use-fake-{name}" for name in fakes] + [f"--use-file-for-fake-audio-capture={microphone}"]
            started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])
        yield started
        started.close()


RECORD_CHATS = """
window.chats = [];
const send = window.fetch;
window.fetch = (url, options) => {
  if (String(url).endsWith("/v1/chat/completions")) window.chats.push(JSON.parse(options.body));
  return send(url, options);
};
"""
"""Keeps the bodies of the page's chat requests; BiDi does not have them."""


def chat_body(page: Any) -> Any:
    """Wait for the next chat request of `page`, and return its body."""
    return page.wait_for_function("() => window.chats.shift()").json_value()


def enter_key(page: Any, key: str) -> None:
    page.fill("dialog input", key)
    page.click("dialog button[type=submit]")


def with_key(visit: "Visit") -> Any:
    """Open the chat with the tests' key in the browser's storage."""
    visit.context.add_init_script(f"if (location.host) localStorage.setItem('llamapool.key', '{KEY}')")
    page = visit.open()
    page.wait_for_selector(".model-picker select")
    return page


class Visit:
    """One browser profile's look at a server. At its end nothing may have gone wrong in the page, and no other host may
    have been asked."""

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        self.base = base
        self.hosts: tuple[str, ...] = (base, "blob:", "data:")
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, **{"locale": "en-GB", **options})
        self.context.add_init_script(RECORD_CHATS)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, message: Any) -> None:
        refused = "Failed to load resource" in message.text  # a status that a test wanted
        if message.type in ("error", "warning") and not refused:
            self.faults.append(message.text)

    def open(self, view: str = "chat") -> Any:
        self.page.goto(f"{self.base}/#/{view}")
        self.page.wait_for_selector("main")
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.faults == []
        assert [url for url in self.asked if not url.startswith(self.hosts)] == []


@pytest.fixture
def visit(browser: Any, server: RealServer) -> Iterator[Visit]:
    """A new profile at `server`."""
    made = Visit(browser, server.base_url)
    yield made
    made.close()


@pytest.fixture
def guarded_visit(browser: Any, guarded: RealServer) -> Iterator[Visit]:
    """A new profile at `guarded`."""
    made = Visit(browser, guarded.base_url)
    yield made
    made.close()


@dataclass(frozen=True)
class McpServer:
    """An MCP server that pages of all origins may use. ``calls``: the tools that were called."""

    url: str
    calls: list[tuple[str, Any]]

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")


@pytest.fixture
def mcp() -> Iterator[McpServer]:
    """Tools, a prompt, a resource and a resource template over HTTP on loopback."""
    tools = Tools()
    server = tools.make()

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name} in one sentence."

    @server.resource("notes://today", name="today.txt")
    def today() -> str:
        return "The password is swordfish."

    @server.resource("notes://{number}", name="note")
    def note(number: str) -> str:
        return f"Note {number}"

    every = ["*"]
    app = CORSMiddleware(server.streamable_http_app(), every, every, every, expose_headers=["Mcp-Session-Id"])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield McpServer(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", tools.calls)
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def axe() -> str:
    place = os.environ.get("AXE_CORE", str(ROOT / "build" / "page" / "axe.min.js"))
    return Path(place).read_text()
