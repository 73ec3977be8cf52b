"""One request's way through the files, as text: `make trace`, or `python -m benchmarks.trace [--path P] [--body JSON]`.

A line is a stay in one file: its thread, how deep in calls, the functions that were called there; those of a single
statement, which nobody needs to follow, are left out (`--all`: they are not). What the same thread does several times
over in a row (a step for each token) is one block with a count.
"""

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import httpx

from benchmarks.in_process import serving

ROOT = Path(__file__).resolve().parents[1] / "server"
MODEL = ROOT.parent / "models" / "demo.gguf"
BODY = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 2}
MOST_NAMES = 7  # of a line


@dataclass(slots=True)
class Stay:
    """Calls of one thread within one file, one after the other."""

    thread: str
    depth: int
    file: str
    names: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Thread, indented file, functions."""
        names = list(dict.fromkeys(self.names))
        more = f", {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        place = "  " * self.depth + self.file
        return f"{self.thread:<14.14} {place:<58} {', '.join(names[:MOST_NAMES])}{more}"


class Tracer:
    """Sees calls of all threads that begin after it was installed; keeps those made while it is on."""

    def __init__(self, *, all_calls: bool) -> None:
        self.on = False
        self._all = all_calls
        self.stays: list[Stay] = []
        self._files: dict[str, str] = {}
        self._last: dict[str, Stay] = {}
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)

    def _seen(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        file = self._files.get(code.co_filename)
        if file is None:
            path = Path(code.co_filename)
            file = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            self._files[code.co_filename] = file
        if not file or code.co_name.startswith("<") or not (self._all or has_steps(code)):
            return
        thread = threading.current_thread().name.replace("MainThread", "event loop")
        last = self._last.get(thread)
        if last is None or last.file != file or self.stays[-1].thread != thread:
            last = self._last[thread] = Stay(thread, self._depth(frame), file)
            self.stays.append(last)
        last.names.append(code.co_qualname)

    def _depth(self, frame: FrameType) -> int:
        """Other files of ours that are being called from."""
        files: list[str] = []
        caller = frame.f_back
        while caller is not None:
            file = self._files.get(caller.f_code.co_filename, "")
            if file and (not files or files[-1] != file):
                files.append(file)
            caller = caller.f_back
        return len(files)


def has_steps(code: CodeType) -> bool:
    """Whether it is more than one statement."""
    return len({line for _, _, line in code.co_lines() if line is not None}) > 2  # the first line is the definition's


def blocks(lines: list[str]) -> Iterator[tuple[list[str], int]]:
    """Lines, and how often they come in a row; the longest block that repeats counts as one."""
    at = 0
    while at < len(lines):
        best, times = 1, 1
        for length in range(min(60, (len(lines) - at) // 2), 0, -1):
            block, n = lines[at : at + length], 1
            while lines[at + n * length : at + (n + 1) * length] == block:
                n += 1
            if n > 1 and n * length > best * times:
                best, times = length, n
        yield lines[at : at + best], times
        at += best * times


async def trace(path: str, body: dict[str, object], words: list[str], *, all_calls: bool) -> list[Stay]:
    """What happens for the second of two requests: the first one leaves what only the first one of a server does."""
    tracer = Tracer(all_calls=all_calls)
    async with serving(words) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
        for tracer.on in (False, True):
            (await client.post(path, json=body)).raise_for_status()
        tracer.on = False
    return tracer.stays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--body", type=json.loads, default=BODY, help="JSON")
    parser.add_argument("--all", action="store_true", help="also functions of one statement")
    parser.add_argument("flags", nargs="*", help="of the server, behind --", default=[])
    given = parser.parse_args()
    words = given.flags or ["-m", str(MODEL), "--log-disable", "-c", "4096", "-np", "2"]
    stays = asyncio.run(trace(given.path, given.body, words, all_calls=given.all))
    for block, times in blocks([stay.line() for stay in stays]):
        if times > 1:
            print(f"-- {times} times:")
        print("\n".join(block))
        if times > 1:
            print("--")
    print(f"{len(stays)} stops in {len({stay.file for stay in stays})} files", file=sys.stderr)


if __name__ == "__main__":
    main()
