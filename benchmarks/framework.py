"""Measure the CPU time that uvicorn and FastAPI take per request, for a server that computes nothing.

``python -m benchmarks.framework [--seconds 5]`` serves the completion of one token of `benchmarks.wrk` from a bare ASGI
function and from a FastAPI route with a validated body, each with uvicorn in a process of its own, and prints a table.
A server that uses both takes at least as long. Needs wrk.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.resources import cpu_s
from benchmarks.wrk import run_client
from tests.support.real_server import free_port

REPLY = {"object": "text_completion", "choices": [{"index": 0, "text": " word", "finish_reason": "length"}]}
_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
fastapi = FastAPI()


class Body(BaseModel):
    """The fields of the benchmark's request."""

    prompt: str
    max_tokens: int
    temperature: float
    stream: bool = False


@fastapi.post("/v1/completions")
async def completions(body: Body) -> dict[str, Any]:
    return REPLY | {"model": body.prompt}


async def asgi(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Answer every request without a framework."""
    if scope["type"] == "http":
        json.loads((await receive())["body"] or b"{}")
        await send(_HEAD)
        await send({"type": "http.response.body", "body": json.dumps(REPLY).encode()})


def _measure(app: str, seconds: int) -> tuple[float, float]:
    """Return requests per second and milliseconds of CPU time per request."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.framework:{app}", "--port", str(port)]
    server = subprocess.Popen([*command, "--no-access-log", "--log-level", "error"])
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/docs").close()
                break
            except OSError:
                time.sleep(0.1)
        run_client("", app, "1 token", port, 1)
        before = cpu_s(server.pid)
        run = run_client("", app, "1 token", port, seconds)
        return run.requests_per_s, (cpu_s(server.pid) - before) * 1e3 / (run.requests_per_s * seconds)
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure both servers and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.framework", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5, help="duration of each run")
    seconds = parser.parse_args().seconds
    print("| server | requests/s | ms of CPU per request |\n|---|--:|--:|")
    for app in ("asgi", "fastapi"):
        rate, cpu_ms = _measure(app, seconds)
        print(f"| {app} | {rate:.0f} | {cpu_ms:.2f} |")


if __name__ == "__main__":
    main()
