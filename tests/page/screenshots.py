"""Take the screenshots of docs/screenshots: ``python -m tests.page.screenshots CHAT_MODEL.gguf``.

The chat uses the model in CHAT_MODEL.gguf, the other views the demo model. Look at the files before you commit them.
"""

import shutil
import sys
import threading
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.page.browser import send_message
from tests.page.conftest import CHROMIUM, KEY, Visit, enter_key, full_queue, guarded_server
from tests.support.real_server import ROOT, RealServer, llamapool_config

TARGET = ROOT / "docs" / "screenshots"
CONFIG = """
server:
  state: memory
  slot_save_path: {folder}
models:
  demo:
    path: {root}/models/demo.gguf
    n_ctx: 16384
    n_parallel: 4
    load: startup
    lora: [{root}/models/demo-lora.gguf]
    cache_disk: 200
    cache_disk_path: {folder}/disk
  smollm2:
    path: {chat_model}
    n_ctx: 8192
    n_parallel: 2
    load: startup
  demo-embed:
    path: {root}/models/demo-embed.gguf
    load: startup
  idle:
    path: {root}/models/demo.gguf
  broken:
    path: {folder}/broken.gguf
"""
TEACHER = "You are a patient teacher who explains everything slowly, with many examples and in short sentences."
LIGHT: dict[str, Any] = {"color_scheme": "light"}
DARK: dict[str, Any] = {"color_scheme": "dark"}
PHONE: dict[str, Any] = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2}


VIEWS: dict[str, dict[str, Any]] = {
    "chat-light": LIGHT,
    "chat-phone": PHONE,
    "engine-light": LIGHT,
    "engine-dark": DARK,
    "engine-phone": PHONE | DARK,
}
"""Browser options of each screenshot of a view. Its name starts with the view."""


def start_requests(server: RealServer, n: int, n_tokens: int) -> None:
    """Start `n` requests that share a prefix, without waiting for their ends."""

    def send(i: int) -> None:
        question = f"Tell me about number {i}. " * (3 + 4 * i)
        messages = [{"role": "system", "content": TEACHER}, {"role": "user", "content": question}]
        body = {"model": "demo", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "priority": i % 2}
        server.request("POST", "/v1/chat/completions", body)

    for i in range(n):
        threading.Thread(target=send, args=(i,), daemon=True).start()


def take_view(browser: Any, server: RealServer, name: str) -> None:
    """Take the screenshot of a view while the server is busy."""
    view, options = name.partition("-")[0], VIEWS[name]
    visit = Visit(browser, server.base_url, **options)
    if options.get("is_mobile"):
        visit.page.set_viewport_size({"width": 390, "height": 844})
    page = visit.open(view)
    page.wait_for_selector(f".view-{view} h1")
    page.set_default_timeout(180_000)
    if view == "chat":
        page.select_option(".model-picker select", "smollm2")
        page.click("button[aria-label=Settings]")
        page.fill(".settings label:has-text('Temperature') input", "0.5")
        page.fill(".settings label:has-text('Maximum tokens') input", "160")
        page.click(".settings button[aria-label=Close]")
        for text in ("Why is the sky blue? Answer in two sentences.", "Write a Python function that adds two numbers."):
            send_message(page, text)
            page.wait_for_selector("button[aria-label=Stop]", state="attached")
            page.wait_for_selector("button[aria-label=Send]", timeout=120_000)
    else:
        if not options.get("is_mobile"):
            page.set_viewport_size({"width": 1280, "height": 1320})  # down to the cached KV states
        page.wait_for_selector(".slot")
        start_requests(server, 7, 700)
        page.wait_for_selector(".slot.decode")
        page.wait_for_timeout(3000)
    save_screenshot(page, name)
    visit.close()


def save_screenshot(page: Any, name: str) -> None:
    """Save a screenshot with 256 colours, which makes the file two thirds smaller."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(600)
    shot = Image.open(BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=2).save(TARGET / f"{name}.png", optimize=True)


def state_lost(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector(".model-picker select")
    visit.context.set_offline(True)
    send_message(page, "Is anybody there?")
    page.wait_for_selector(".notice.warn")


def state_queue(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector("dialog")
    enter_key(page, KEY)
    page.wait_for_selector(".model-picker select")
    send_message(page, "Is there a place for me?")
    page.wait_for_selector(".failure")


def state_failed(visit: Visit) -> None:
    page = visit.open("models")
    card = page.locator(".card:has(h2:text-is('broken'))")
    card.locator("button:has-text('Load')").click()
    card.locator(".failure").wait_for()


def state_unloaded(visit: Visit) -> None:
    page = visit.open()
    page.select_option(".model-picker select", "idle")
    page.wait_for_selector(".model-picker:has-text('not loaded')")


def state_key(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector("dialog")
    enter_key(page, "sk-wrong")
    page.wait_for_selector("dialog .wrong")


STATES = {
    "state-lost": (state_lost, LIGHT),
    "state-queue": (state_queue, DARK),
    "state-failed": (state_failed, LIGHT),
    "state-unloaded": (state_unloaded, PHONE | LIGHT),
    "state-key": (state_key, PHONE | DARK),
}
"""States in which something is missing: the function that reaches the state, and browser options."""


def take_state(browser: Any, server: RealServer, guarded: RealServer, name: str) -> None:
    reach, options = STATES[name]
    visit = Visit(browser, (guarded if name in ("state-queue", "state-key") else server).base_url, **options)
    visit.page.set_viewport_size(
        {"width": 390, "height": 844} if "is_mobile" in options else {"width": 1000, "height": 640}
    )
    with full_queue(guarded) if name == "state-queue" else nullcontext():
        reach(visit)
        save_screenshot(visit.page, name)
    visit.close()


def main(chat_model: Path, only: list[str]) -> None:
    TARGET.mkdir(exist_ok=True)
    folder = Path("/tmp/models")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    shutil.rmtree(folder / "disk", ignore_errors=True)
    (folder / "disk").mkdir()
    (folder / "broken.gguf").write_bytes((ROOT / "models" / "demo.gguf").read_bytes()[:4096])
    config.write_text(CONFIG.format(folder=folder, root=ROOT, chat_model=chat_model))
    with llamapool_config(config) as server, guarded_server(folder) as guarded, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in VIEWS:
            if not only or name in only:
                take_view(browser, server, name)
        for name in STATES:
            if not only or name in only:
                take_state(browser, server, guarded, name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
