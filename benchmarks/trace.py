"""Print a request's path through the files: `make trace`, or `python -m benchmarks.trace [--path P] [--body JSON]`.

The output has a part for each phase: the event loop reads, a worker prepares, a step thread generates, the event loop
replies. A line is a file, below its first caller in the phase, with the functions called there, each once. Functions of
a single statement are omitted, and private functions of files that have others. With `--all` nothing is condensed or
omitted: each line is a visit of a file.
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
class Visit:
    """Successive calls of one thread within one file."""

    thread: str
    callers: list[str]  # other files of the server, the nearest first
    file: str
    names: list[str] = field(default_factory=list)


class Tracer:
    """Records calls of this thread and of later threads while ``on``."""

    def __init__(self, *, all_calls: bool) -> None:
        self.on = False
        self._all = all_calls
        self.visits: list[Visit] = []
        self._files: dict[str, str] = {}
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        file = self._files.get(code.co_filename)
        if file is None:
            path = Path(code.co_filename)
            file = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            self._files[code.co_filename] = file
        if not file or code.co_name.startswith("<") or not (self._all or (has_steps(code) and is_call(frame))):
            return
        thread = threading.current_thread().name.replace("MainThread", EVENT_LOOP)
        last = self.visits[-1] if self.visits else None
        if last is None or last.file != file or last.thread != thread:
            last = Visit(thread, self._callers(frame, file), file)
            self.visits.append(last)
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
    """Return whether the function has more than one statement."""
    return len({line for _, _, line in code.co_lines() if line is not None}) > 2  # the first line is the definition


def is_call(frame: FrameType) -> bool:
    """Return whether `frame` is a call, not a resumed coroutine or generator."""
    return not frame.f_code.co_flags & RESUMED or frame.f_lineno == frame.f_code.co_firstlineno


def phases(visits: list[Visit]) -> Iterator[list[Visit]]:
    """Yield the visits of each thread as one phase, in order, and between them those of the event loop."""
    by_thread: dict[str, list[int]] = {}
    for i, visit in enumerate(visits):
        by_thread.setdefault(visit.thread, []).append(i)
    loop = by_thread.pop(EVENT_LOOP, [])
    for indices in sorted(by_thread.values(), key=median):
        yield [visits[i] for i in loop if i < median(indices)]
        yield [visits[i] for i in indices]
        loop = [i for i in loop if i >= median(indices)]
    yield [visits[i] for i in loop]


def tree(phase: list[Visit]) -> Iterator[str]:
    """Yield a line for each file, below its first caller, with its public functions, otherwise its private ones."""
    names: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for visit in phase:
        if visit.file not in names:
            below.setdefault(next((file for file in visit.callers if file in names), ""), []).append(visit.file)
        names.setdefault(visit.file, []).extend(visit.names)

    def lines(above: str, depth: int) -> Iterator[str]:
        for file in below.get(above, []):
            public = [name for name in names[file] if not re.search(r"(^|\.)_(?!_call__)", name)]
            yield format_line(file, public or names[file], depth)
            yield from lines(file, depth + 1)

    return lines("", 0)


def format_line(file: str, names: list[str], depth: int) -> str:
    """Return a line: the indented file and its functions. Successive methods name their class once."""
    words, owner = [], ""
    for name in dict.fromkeys(names):
        before, dot, last = name.rpartition(".")
        words.append(f".{last}" if dot and before == owner else name)
        owner = before
    place = f"{'  ' * depth + file:<48} "
    return "\n".join(wrap(place + ", ".join(words), 150, subsequent_indent=" " * 49, drop_whitespace=True))


async def trace(path: str, body: dict[str, object], flags: list[str], *, all_calls: bool) -> list[Visit]:
    """Trace the second of two requests, without the work that only the first request of a server causes."""
    tracer = Tracer(all_calls=all_calls)
    async with serving(flags) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
        for tracer.on in (False, True):
            (await client.post(path, json=body)).raise_for_status()
        tracer.on = False
    return tracer.visits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--body", type=json.loads, default=BODY, help="JSON")
    parser.add_argument("--all", action="store_true", help="print each visit of a file with all functions")
    parser.add_argument("flags", nargs="*", help="of the server, after --", default=[])
    options = parser.parse_args()
    flags = options.flags or ["-m", str(MODEL), "--log-disable", "-c", "4096", "-np", "2"]
    visits = asyncio.run(trace(options.path, options.body, flags, all_calls=options.all))
    runs: Iterable[list[Visit]] = ([visit] for visit in visits) if options.all else phases(visits)
    thread = ""
    for run in runs:
        if run and run[0].thread != thread:
            thread = run[0].thread
            print(f"\n{thread}")
        lines = (
            [format_line(visit.file, visit.names, len(visit.callers)) for visit in run] if options.all else tree(run)
        )
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()
