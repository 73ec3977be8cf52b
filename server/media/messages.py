"""Messages between `decode` and its sandboxed processes: one line of JSON, then bytes."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from server.media.header import Unreadable
from server.sandbox.process import Processes, Stopped
from server.sandbox.worker import FAULT, Answer

IMAGE = b"i"
KINDS = {"image": IMAGE, "audio": b"a", "video": b"v"}
UNREADABLE = b"u"
Json = dict[str, Any]
Work: TypeAlias = Callable[[bytes, Json, bytes], tuple[Json, bytes]]
"""Takes the kind of a request, its options and a file; returns a description and bytes. Raises `Unreadable`."""


def answering(work: Work) -> Answer:
    """Return the request handler of a decoder process."""

    def answer(kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        options, _, data = request.partition(b"\n")
        try:
            description, content = work(kind, json.loads(options), data)
        except Unreadable as fault:
            return UNREADABLE, str(fault).encode()
        return kind, json.dumps(description).encode() + b"\n" + content

    return answer


def ask(processes: Processes, kind: bytes, options: Json, data: bytes, task: str) -> tuple[Any, bytes]:
    """Return the answer of a process. Raises `Unreadable`. ``task``: names the work in the error if it is stopped."""
    try:
        status, answer = processes.ask(kind, json.dumps(options).encode() + b"\n", data)
    except Stopped as stopped:
        raise Unreadable(f"{task} was stopped: {stopped}") from None
    if status in (UNREADABLE, FAULT):
        raise Unreadable(answer.decode(errors="replace"))
    description, _, content = answer.partition(b"\n")
    return json.loads(description), content
