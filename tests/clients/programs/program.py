"""What a program under test is, and what its loop reports."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.programs.harness import Ended, Server, Workplace
from tests.clients.programs.scripted_model import Line

CONTEXT = 1 << 16


@dataclass(frozen=True)
class Step:
    """One part of a loop. ``detail`` says what was seen where it was not done."""

    name: str
    done: bool
    detail: str = ""


@dataclass
class Run:
    """A program's loop on one family."""

    program: "Program"
    family: str
    server: Server
    place: Workplace
    installed: Path
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # figures for the page

    def check(self, name: str, done: object, seen: Ended | str = "") -> bool:
        """Note a step; `seen` is kept where it was not done."""
        text = seen if isinstance(seen, str) else f"status {seen.status}: {seen.said}"
        self.steps.append(Step(name, bool(done), "" if done else text[-1500:]))
        return bool(done)

    def binary(self, pattern: str) -> Path:
        """The installed file that is meant; the first one where packages for several systems match."""
        return sorted(self.installed.glob(pattern))[0]

    def refused(self) -> list[str]:
        """What the server answered with an error, less what the script provoked."""
        kept = []
        for one in self.server.asked():
            status = one["status"]
            if (status or 0) >= 400 or (status is None and not one["left"]):
                kept.append(f"{one['method']} {one['path']}: {status} {one['reply'][:300]}")
        return kept


@dataclass(frozen=True)
class Program:
    """A client, pinned: how it is installed, configured, and gone through."""

    name: str
    version: str
    package: str  # as its registry has it
    folder: str  # of the installation
    configure: str  # for users: shown in docs/clients.md, with {url} for the server's address
    lines: Sequence[Line]
    loop: Callable[[Run], None]
    families: Sequence[str] = ("qwen3",)
    context: int = CONTEXT
    flags: Sequence[str] = ()


def calls(*wanted: tuple[str, Mapping[str, Any]], content: str = "", thoughts: str = "") -> dict[str, Any]:
    """An assistant's message that calls tools."""
    made = [
        {"id": call_id(name, arguments), "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for name, arguments in wanted
    ]
    message: dict[str, Any] = {"content": content, "tool_calls": made}
    return {**message, "reasoning_content": thoughts, "thinking": thoughts} if thoughts else message


def call_id(name: str, arguments: Mapping[str, Any]) -> str:
    """Nine characters, as Mistral's models write them. Each call has its own: clients tell calls apart by it."""
    return f"c{zlib.crc32(repr((name, dict(arguments))).encode()):08x}"


def says(text: str, thoughts: str = "") -> dict[str, Any]:
    return {"content": text, **({"reasoning_content": thoughts, "thinking": thoughts} if thoughts else {})}


def events(text: str) -> list[dict[str, Any]]:
    """The lines of JSON in what a program printed."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found
