"""Prompt states on disk: one real process ends and the next continues, or two that run share the folder."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import EXACT, RealServer, llamapool

PROMPT = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together " * 12
FLAGS = ("-c", "2048", "-np", "2", "-t", "1", *EXACT, "--no-warmup", "--metrics")
DEADLINE_S = 120.0


def ask(server: RealServer, prompt: list[int], **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, "return_tokens": True, **more}
    reply: dict[str, Any] = server.post("/completion", body)
    return reply


@pytest.mark.parametrize("kind", ["hybrid", "sliding-window"])
def test_a_conversation_continues_in_the_next_process(kind: str, gguf_folder: Path, tmp_path: Path) -> None:
    path = gguf_file(gguf_folder, MODELS[kind])
    disk = ("--cache-disk", "100", "--cache-disk-path", str(tmp_path))
    with llamapool(path, *FLAGS, *disk) as server:
        prompt = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        first = ask(server, prompt)
    longer = [*prompt, *first["tokens"], *range(300, 310)]
    with llamapool(path, *FLAGS, *disk, "-c", "3072") as server:  # as another fit may choose it
        reply = ask(server, longer)
        assert reply["timings"]["cache_n"] == len(prompt) + 7
        assert reply["tokens"] == ask(server, longer, cache_prompt=False)["tokens"]


def wait_for_state(server: RealServer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not re.search(rb"^llamapool_cache_disk_states\{[^}]*\} [1-9]", server.request("GET", "/metrics").body, re.M):
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.05)


def test_a_conversation_continues_in_another_process_that_shares_the_folder(gguf_folder: Path, tmp_path: Path) -> None:
    model, secret = gguf_file(gguf_folder, MODELS["no-template"]), tmp_path / "secret"
    secret.write_text("thirty-two bytes of no great secret")
    (tmp_path / "slots").mkdir()
    config = tmp_path / "shared.yaml"
    config.write_text(f"server: {{slot_save_path: slots, slot_save_secret_file: {secret}}}\n")
    shared = ("--cache-disk", "100", "--cache-disk-path", str(tmp_path / "states"), "--cache-disk-shared")
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(llamapool(model, *FLAGS, *shared, "--config", str(config))) for _ in range(2)
        )
        prompt = first.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        reply = ask(first, prompt)
        longer = [*prompt, *reply["tokens"], *range(300, 310)]
        wait_for_state(second)  # the first one has written its idle slot, the second one has seen it
        found = ask(second, longer)
        assert found["timings"]["cache_n"] >= len(prompt)
        assert found["tokens"] == ask(first, longer, cache_prompt=False)["tokens"]

        saved = first.post("/slots/0?action=save", {"filename": "fox.bin"})
        restored = second.post("/slots/1?action=restore", {"filename": "fox.bin"})
        assert restored["n_restored"] == saved["n_saved"] > 0
        (tmp_path / "slots" / "fox.bin").write_bytes(b"forged")
        assert second.request("POST", "/slots/1?action=restore", {"filename": "fox.bin"}).status == 400
