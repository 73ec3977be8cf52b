"""A program under test, and the results of its loop."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.programs.harness import ProcessResult, Server, Workspace
from tests.clients.programs.scripted_model import ScriptLine

CONTEXT = 1 << 16


@dataclass(frozen=True)
class Step:
    """A checked part of a loop. ``detail``: the program's output if the check failed."""

    name: str
    done: bool
    detail: str = ""


@dataclass
class Run:
    """A program's loop with the chat template of one model family, or with a real model."""

    program: "Program"
    family: str
    server: Server
    workspace: Workspace
    installed: Path
    steps: list[Step] = field(default_factory=list)

    def check(self, name: str, done: object, output: ProcessResult | str = "") -> bool:
        """Add a step, with the end of `output` if it was not done. Return whether it was done."""
        text = output if isinstance(output, str) else f"status {output.status}: {output.output}"
        self.steps.append(Step(name, bool(done), "" if done else text[-1500:]))
        return bool(done)

    def binary(self, pattern: str) -> Path:
        """Return the first installed file that matches; there may be one for each operating system."""
        return sorted(self.installed.glob(pattern))[0]

    def failed_requests(self) -> list[str]:
        """Return a line for each request with an error status or without a reply."""
        return [
            f"{request['method']} {request['path']}: {request['status']} {request['reply'][:300]}"
            for request in self.server.requests()
            if (request["status"] or 0) >= 400 or (request["status"] is None and not request["disconnected"])
        ]


@dataclass(frozen=True)
class Program:
    """A client at a pinned version, its configuration and its loop."""

    name: str
    version: str
    package: str  # name in its registry
    folder: str  # of the installation
    snippet: str  # the configuration in docs/clients.md, with {url} and {model}
    script: Sequence[ScriptLine]
    loop: Callable[[Run], None]
    families: Sequence[str] = ("qwen3",)
    context: int = CONTEXT
    flags: Sequence[str] = ()


def call_message(*calls: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an assistant message that calls tools, given as names and arguments."""
    tool_calls = [
        {"id": call_id(name, arguments), "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
        for name, arguments in calls
    ]
    return {"content": "", "tool_calls": tool_calls}


def call_id(name: str, arguments: Mapping[str, Any]) -> str:
    """Return an id of nine characters, the format of Mistral's models. Clients distinguish calls by it."""
    return f"c{zlib.crc32(repr((name, dict(arguments))).encode()):08x}"


def text_message(text: str, reasoning: str = "") -> dict[str, Any]:
    return {"content": text, **({"reasoning_content": reasoning, "thinking": reasoning} if reasoning else {})}


def json_lines(output: str) -> list[dict[str, Any]]:
    """Return the lines of a program's output that are JSON objects."""
    objects = []
    for line in output.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                objects.append(json.loads(line))
    return objects
