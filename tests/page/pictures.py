"""Takes the pictures of docs/pictures: ``python -m tests.page.pictures TALKER.gguf`` against the demo model and,
for the chat, a model that can talk. Look at them before they are committed.
"""

import sys
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.page.conftest import CHROMIUM, Visit
from tests.real_server import ROOT, RealServer, llamapool_config

PLACE = ROOT / "docs" / "pictures"
CONFIG = """
server:
  slot_save_path: {folder}
models:
  demo:
    path: {root}/models/demo.gguf
    n_ctx: 16384
    n_parallel: 4
    load: startup
    lora: [{root}/models/demo-lora.gguf]
  smollm2:
    path: {talker}
    n_ctx: 8192
    n_parallel: 2
    load: startup
  demo-embed:
    path: {root}/models/demo-embed.gguf
    load: startup
"""
TEACHER = "You are a patient teacher who explains everything slowly, with many examples and in short sentences."
LIGHT: dict[str, Any] = {"color_scheme": "light"}
DARK: dict[str, Any] = {"color_scheme": "dark"}
PHONE: dict[str, Any] = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2}


PICTURES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("chat", "chat-light", LIGHT),
    ("chat", "chat-phone", PHONE),
    ("prompt", "prompt-light", LIGHT),
    ("tokens", "tokens-dark", DARK),
    ("models", "models-light", LIGHT),
    ("engine", "engine-dark", DARK),
    ("engine", "engine-light", LIGHT),
    ("engine", "engine-phone", PHONE | DARK),
    ("requests", "requests-light", LIGHT),
    ("metrics", "metrics-dark", DARK),
)


def busy(server: RealServer, n: int, n_tokens: int) -> list[threading.Thread]:
    """Requests that share their beginning, under way."""

    def ask(i: int) -> None:
        question = f"Tell me about number {i}. " * (3 + 4 * i)
        messages = [{"role": "system", "content": TEACHER}, {"role": "user", "content": question}]
        body = {"model": "demo", "messages": messages, "max_tokens": n_tokens, "ignore_eos": True, "priority": i % 2}
        server.request("POST", "/v1/chat/completions", body)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    return threads


def take(browser: Any, server: RealServer, view: str, name: str, **options: Any) -> None:
    """One picture of a view at its work."""
    visit = Visit(browser, server.base_url, **options)
    if options.get("is_mobile"):
        visit.page.set_viewport_size({"width": 390, "height": 844})
    page = visit.open(view)
    page.wait_for_selector(f".view-{view} h1")
    if view == "chat":
        page.select_option(".model-picker select", "smollm2")
        page.click("button[aria-label=Settings]")
        page.fill(".settings label:has-text('Temperature') input", "0.5")
        page.fill(".settings label:has-text('Most tokens') input", "160")
        page.click(".settings button[aria-label=Close]")
        for text in ("Why is the sky blue? Answer in two sentences.", "Write a Python function that adds two numbers."):
            page.fill(".composer textarea", text)
            page.keyboard.press("Enter")
            page.wait_for_selector("button[aria-label=Stop]", state="attached")
            page.wait_for_selector("button[aria-label=Send]", timeout=120_000)
    elif view == "engine":
        page.wait_for_selector(".slot")
        busy(server, 7, 700)
        page.wait_for_selector(".slot.decode")
        page.wait_for_timeout(3000)
    elif view == "tokens":
        page.click("button[type=submit]")
        page.wait_for_selector("button[type=submit]")
        page.locator(".chip").nth(6).click()
    elif view == "prompt":
        page.select_option(".model-picker select", "smollm2")
        page.wait_for_selector(".tok")
        page.click("text=Ask once")
        page.wait_for_selector(".raw")
    elif view == "metrics":
        page.wait_for_selector(".plot canvas", timeout=60_000)
    page.wait_for_timeout(600)
    page.screenshot(path=PLACE / f"{name}.png")
    visit.close()


def main(talker: Path, only: list[str]) -> None:
    """These pictures, or all."""
    PLACE.mkdir(exist_ok=True)
    folder = ROOT / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder, root=ROOT, talker=talker))
    with llamapool_config(config) as server, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for view, name, options in PICTURES:
            if not only or name in only:
                take(browser, server, view, name, **options)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
