"""The web UI in a real browser, against real servers with the demo model: `make page`, not part of `make test`.

Needs Playwright's Python package and the system's Chromium (``CHROMIUM`` names another one), or a Firefox that
``FIREFOX`` names. ``AXE_CORE`` is the file of axe-core, which checks accessibility.
"""

import hashlib
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
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
  multimodal:
    path: {demo}
    mmproj: {mmproj}
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
    """Start a server without keys: one loaded model, two that can be loaded, and a broken one."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "broken.gguf").write_bytes(DEMO.read_bytes()[:4096])
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder, demo=DEMO, mmproj=DEMO.with_name("mmproj-demo.gguf")))
    with llamapool_config(config) as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Start a server with a key file, one slot, and a queue of one."""
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
    """Fill the server: one request decodes and one waits."""
    head = {"Authorization": f"Bearer {KEY}"}
    ids = ["decoding", "waiting"]

    def complete(name: str) -> None:
        body = {"model": "demo", "prompt": "Once upon a time", "ignore_eos": True, "n_predict": 10**6, "stream": True}
        guarded.request("POST", "/completion", body, headers=head | {"X-Conversation-Id": name})

    threads = [threading.Thread(target=complete, args=(name,), daemon=True) for name in ids]
    for thread, line in zip(threads, ("llamacpp:requests_processing 1", "llamacpp:requests_deferred 1"), strict=True):
        thread.start()
        while line not in guarded.request("GET", "/metrics", headers=head).body.decode():
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
    """Return one second of 440 Hz as WAV."""
    samples = (int(12000 * math.sin(2 * math.pi * 440 * i / 16000)) for i in range(16000))
    return wav(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Launch one browser for all tests: Chromium, or over WebDriver BiDi the Firefox that ``FIREFOX`` names."""
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
            launched = running.firefox.launch(
                executable_path=FIREFOX, channel="moz-firefox", firefox_user_prefs=preferences
            )
        else:
            microphone = tmp_path_factory.mktemp("microphone") / "tone.wav"
            microphone.write_bytes(tone())
            fakes = ("device-for-media-stream", "ui-for-media-stream")
            arguments = [f"--use-fake-{name}" for name in fakes] + [f"--use-file-for-fake-audio-capture={microphone}"]
            launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])
        yield launched
        launched.close()


RECORD_CHATS = """
window.chats = [];
const send = window.fetch;
window.fetch = (url, options) => {
  if (String(url).endsWith("/v1/chat/completions")) window.chats.push(JSON.parse(options.body));
  return send(url, options);
};
"""
"""Records the bodies of chat requests in `window.chats`, because BiDi does not report them."""


def chat_body(page: Any) -> Any:
    """Wait for the next chat request of `page`. Returns its body."""
    return page.wait_for_function("() => window.chats.shift()").json_value()


def enter_key(page: Any, key: str) -> None:
    page.fill("dialog input", key)
    page.click("dialog button[type=submit]")


def with_key(visit: "Visit") -> Any:
    """Open the chat with a valid key in the browser's storage."""
    visit.context.add_init_script(f"if (location.host) localStorage.setItem('llamapool.key', '{KEY}')")
    page = visit.open()
    page.wait_for_selector(".model-picker select")
    return page


class Visit:
    """One browser profile with a page of a server. `close` fails on errors in the page and on requests to other hosts.

    A test adds expected hosts to `hosts`, and removes expected errors from `faults`.
    """

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        self.base = base
        self.hosts: tuple[str, ...] = (base, "blob:", "data:")
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, **{"locale": "en-GB", **options})
        self.context.add_init_script(RECORD_CHATS)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        self.urls: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.on("request", lambda request: self.urls.append(request.url))

    def _on_console(self, message: Any) -> None:
        is_status = "Failed to load resource" in message.text  # tests provoke error statuses
        if message.type in ("error", "warning") and not is_status:
            self.faults.append(message.text)

    def open(self, view: str = "chat") -> Any:
        self.page.goto(f"{self.base}/#/{view}")
        self.page.wait_for_selector("main")
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.faults == []
        assert [url for url in self.urls if not url.startswith(self.hosts)] == []


@pytest.fixture
def new_visit(browser: Any, server: RealServer) -> Iterator[Callable[..., Visit]]:
    """Open profiles, by default at `server`, with options of Playwright. All are closed at the end."""
    opened: list[Visit] = []

    def open_profile(base: str = server.base_url, **options: Any) -> Visit:
        opened.append(Visit(browser, base, **options))
        return opened[-1]

    yield open_profile
    for each in opened:
        each.close()


@pytest.fixture
def visit(new_visit: Callable[..., Visit]) -> Visit:
    """Open a profile at `server`."""
    return new_visit()


@pytest.fixture
def page(visit: Visit) -> Any:
    """Open the chat view at `server`."""
    return visit.open()


@pytest.fixture
def guarded_visit(new_visit: Callable[..., Visit], guarded: RealServer) -> Visit:
    """Open a profile at `guarded`."""
    return new_visit(guarded.base_url)


@dataclass(frozen=True)
class McpServer:
    """An MCP server that allows all origins. `calls`: name and arguments of each tool call."""

    url: str
    calls: list[tuple[str, Any]]

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")


@pytest.fixture
def mcp() -> Iterator[McpServer]:
    """Serve tools, a prompt, a resource and a resource template over HTTP on loopback."""
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

    anything = ["*"]
    app = CORSMiddleware(server.streamable_http_app(), anything, anything, anything, expose_headers=["Mcp-Session-Id"])
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
    return Path(os.environ.get("AXE_CORE", str(ROOT / "build" / "page" / "axe.min.js"))).read_text()
