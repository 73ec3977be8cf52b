"""Files that released versions wrote: a saved slot, a disk cache, and the state database with its usage.

``python -m tests.model.formats`` writes the folder of this version. Run it before a release that changes a format.
Keep the older folders: `test_saved_slots` opens each of them.
"""

import importlib.metadata
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import RealServer, llamapool

FOLDER = Path(__file__).parent
MODEL, SLOT, STATE, CACHE, FACTS = "tiny.gguf", "slot.bin", "state.sqlite3", "cache", "facts.json"
PROMPT = "the quick brown fox jumps over the lazy dog and then the other animals come together " * 4
GREEDY = {"temperature": 0, "ignore_eos": True}
MESSAGE = {"role": "user", "content": "Remember me."}


def library() -> str:
    """Return the version of llama-cpp-python. Versions do not read each other's states."""
    return importlib.metadata.version("llama-cpp-python")


def serve(folder: Path) -> RealServer:
    """Start a server with the files of `folder`."""
    flags = ("-c", "512", "-np", "1", "-t", "1", "-a", "tiny", "--no-warmup", "--slot-save-path", str(folder))
    disk = ("--cache-disk", "1", "--cache-disk-path", str(folder / CACHE))
    return llamapool(folder / MODEL, *flags, *disk, "--state", str(folder / STATE), "--state-days", "0")


def complete(server: RealServer, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = server.post("/completion", {"prompt": PROMPT, "n_predict": 4, **GREEDY, **fields})
    return reply


def write(folder: Path) -> None:
    """Write the files of this version into `folder`."""
    folder.mkdir(parents=True)
    small = TinyModel(n_embd=16, n_layer=1, n_head=1, n_head_kv=1, n_ctx=512, ftype="F16")
    gguf_file(folder, small).rename(folder / MODEL)
    with serve(folder) as server:
        content = complete(server)["content"]
        n_saved = server.post("/slots/0?action=save", {"filename": SLOT})["n_saved"]
        response = server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 4, **GREEDY})
        conversation = server.post("/v1/conversations", {"items": [MESSAGE], "metadata": {"k": "v"}})
        complete(server)  # on shutdown, the server writes the state of the last prompt
    with sqlite3.connect(folder / STATE) as state:
        state.execute("PRAGMA journal_mode=DELETE")
        state.execute("VACUUM")
    for other in [*folder.rglob("*.lock"), *folder.glob(f"{STATE}-*")]:
        other.unlink()
    facts = {
        "library": library(),
        "content": content,
        "n_saved": n_saved,
        "conversation": conversation["id"],
        "n_requests": 3,
    }
    (folder / FACTS).write_text(json.dumps({**facts, "response": response}, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Replace the folder of this version."""
    folder = FOLDER / importlib.metadata.version("llamapool")
    shutil.rmtree(folder, ignore_errors=True)
    write(folder)
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {n_bytes} bytes", file=sys.stderr)
