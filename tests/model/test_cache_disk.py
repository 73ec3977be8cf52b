"""Prompt states on disk under real processes, on models of every kind of memory: one ends, the next goes on."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import EXACT, RealServer, llamapool

PROMPT = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together " * 12


def ask(server: RealServer, prompt: list[int]) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 16, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    reply: dict[str, Any] = server.post("/completion", body)
    return reply


@pytest.mark.parametrize("kind", ["no-template", "recurrent", "hybrid", "sliding-window"])
def test_a_conversation_goes_on_in_the_next_process(kind: str, gguf_folder: Path, tmp_path: Path) -> None:
    path = gguf_file(gguf_folder, MODELS[kind])
    flags = ("-c", "2048", "-np", "1", "-t", "1", *EXACT, "--no-warmup", "--metrics")
    disk = ("--cache-disk", "100", "--cache-disk-path", str(tmp_path))
    with llamapool(path, *flags) as server:  # what must come
        prompt = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        first = ask(server, prompt)
        second = ask(server, [*prompt, *first["tokens"], *range(300, 310)])
    with llamapool(path, *flags, *disk) as server:
        assert ask(server, prompt)["tokens"] == first["tokens"]
    (file,) = tmp_path.rglob("*.state")
    with llamapool(path, *flags, *disk, "-c", "1536") as server:  # as another fit may choose it
        reply = ask(server, [*prompt, *first["tokens"], *range(300, 310)])
        assert reply["tokens"] == second["tokens"]
        assert reply["timings"]["cache_n"] == len(prompt) + 15
    if kind != "no-template":
        return  # a file is checked in the same way for every kind
    (file,) = tmp_path.rglob("*.state")
    content = file.read_bytes()
    file.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    with llamapool(path, *flags, *disk) as server:  # damaged: computed anew
        reply = ask(server, [*prompt, *first["tokens"], *range(300, 310)])
        assert (reply["tokens"], reply["timings"]["cache_n"]) == (second["tokens"], 0)
    with llamapool(path, *flags, *disk, "-ctk", "f16") as server:  # other settings
        assert ask(server, prompt)["timings"]["cache_n"] == 0
