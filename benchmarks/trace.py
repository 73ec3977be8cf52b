"""One request's way through the files, as text: `make trace`, or `python -m benchmarks.trace [--path P] [--body JSON]`.

In acts: the event loop reads, a worker prepares, a step thread generates, the event loop replies. A line is a
file, below the one that calls it first in that act, with what is called there, each function once (a step for each
token). Left out are functions of a single statement, which nobody needs to follow, and private ones of files that
have others. With `--all` nothing is folded or left out: a line is a stay in a file, a stop.
"""

import argparse
import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from statistics import median
from textwrap import wrap
from types import CodeType, FrameType

import httpx

from benchmarks.in_process import serving

ROOT = Path(__file__).resolve().parents[1] / "server"
MODEL = ROOT.parent / "models" / "demo.gguf"
BODY = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 2}
EVENT_LOOP = "event loop"
RESUMED = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


@dataclass(slots=True)
class Stay:
    """Calls of one thread within one file, one after the other."""

    thread: str
    callers: list[str]  # other files of ours, the nearest first
    file: str
    names: list[str] = field(default_factory=list)


class Tracer:
    """Sees calls of all threads that begin after it was installed; keeps those made while it is on."""

    def __init__(self, *, all_calls: bool) -> None:
        self.on = False
        self._all = all_calls
        self.stays: list[Stay] = []
        self._files: dict[str, str] = {}
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
        if not file or code.co_name.startswith("<") or not (self._all or (has_steps(code) and begins(frame))):
            return
        thread = threading.current_thread().name.replace("MainThread", EVENT_LOOP)
        last = self.stays[-1] if self.stays else None
        if last is None or last.file != file or last.thread != thread:
            last = Stay(thread, self._callers(frame, file), file)
            self.stays.append(last)
        last.names.append(code.co_qualname)

    def _callers(self, frame: FrameType, file: str) -> list[str]:
        files = [file]
        caller = frame.f_back
        while caller is not None:
            above = self._files.get(caller.f_code.co_filename, "")
            if above and files[-1] != above:
                files.append(above)
            caller = caller.f_back
        return files[1:]


def has_steps(code: CodeType) -> bool:
    """Whether it is more than one statement."""
    return len({line for _, _, line in code.co_lines() if line is not None}) > 2  # the first line is the definition's


def begins(frame: FrameType) -> bool:
    """Whether it is a call, and no coroutine or generator that goes on."""
    return not frame.f_code.co_flags & RESUMED or frame.f_lineno == frame.f_code.co_firstlineno


def acts(stays: list[Stay]) -> Iterator[list[Stay]]:
    """Every other thread's stays together, in order, and between them the event loop's."""
    places: dict[str, list[int]] = {}
    for i, stay in enumerate(stays):
        places.setdefault(stay.thread, []).append(i)
    of_loop = places.pop(EVENT_LOOP, [])
    for found in sorted(places.values(), key=median):
        yield [stays[i] for i in of_loop if i < median(found)]
        yield [stays[i] for i in found]
        of_loop = [i for i in of_loop if i >= median(found)]
    yield [stays[i] for i in of_loop]


def tree(act: list[Stay]) -> Iterator[str]:
    """A line for each file, below its first caller; public functions, where there are any."""
    names: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for stay in act:
        if stay.file not in names:
            below.setdefault(next((file for file in stay.callers if file in names), ""), []).append(stay.file)
        names.setdefault(stay.file, []).extend(stay.names)

    def lines(above: str, depth: int) -> Iterator[str]:
        for file in below.get(above, []):
            public = [name for name in names[file] if not re.search(r"(^|\.)_(?!_call__)", name)]
            yield shown(file, public or names[file], depth)
            yield from lines(file, depth + 1)

    return lines("", 0)


def shown(file: str, names: list[str], depth: int) -> str:
    """Indented file, functions; a class is named once for several of its methods in a row."""
    words, owner = [], ""
    for name in dict.fromkeys(names):
        before, dot, last = name.rpartition(".")
        words.append(f".{last}" if dot and before == owner else name)
        owner = before
    place = f"{'  ' * depth + file:<48} "
    return "\n".join(wrap(place + ", ".join(words), 150, subsequent_indent=" " * 49, drop_whitespace=True))


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
    parser.add_argument("--all", action="store_true", help="every stay in a file, every function, in order")
    parser.add_argument("flags", nargs="*", help="of the server, behind --", default=[])
    given = parser.parse_args()
    words = given.flags or ["-m", str(MODEL), "--log-disable", "-c", "4096", "-np", "2"]
    stays = asyncio.run(trace(given.path, given.body, words, all_calls=given.all))
    runs: Iterable[list[Stay]] = ([stay] for stay in stays) if given.all else acts(stays)
    thread = ""
    for run in runs:
        if run and run[0].thread != thread:
            thread = run[0].thread
            print(f"\n{thread}")
        for line in [shown(stay.file, stay.names, len(stay.callers)) for stay in run] if given.all else tree(run):
            print(line)


if __name__ == "__main__":
    main()
