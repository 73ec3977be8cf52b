"""Flame graphs of a server at work: ``make profile`` writes build/profile/{step,request}.svg.

``step``: a stream in each of eight slots, so that what is seen is a step's. ``request``: requests for one token, so
that what is seen is a request's: HTTP, template, tokens. py-spy samples the server 200 times a second, all threads
that are at work, native code left out (``--native`` shows it, where the libraries have symbols).
"""

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "demo.gguf"
SLOTS = 8
READY_S = 60.0
LONG = {"ignore_eos": True, "max_tokens": 400}
SHORT = {"max_tokens": 1}


async def load(port: int, wanted: Mapping[str, object], seconds: float) -> int:
    """Keep every slot busy with such requests for so long; how many were answered."""
    answered = 0
    until = time.monotonic() + seconds

    async def client(http: httpx.AsyncClient, number: int) -> None:
        nonlocal answered
        while time.monotonic() < until:
            body = {"messages": [{"role": "user", "content": f"Tell me story {number}, {answered}."}], **wanted}
            (await http.post("/v1/chat/completions", json=body)).raise_for_status()
            answered += 1

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
        until = time.monotonic() + READY_S
        while (await _status(http)) != 200:
            if time.monotonic() > until:
                raise SystemExit("the server did not start")
            await asyncio.sleep(0.2)
        until = time.monotonic() + seconds
        await asyncio.gather(*(client(http, i) for i in range(SLOTS)))
    return answered


async def _status(http: httpx.AsyncClient) -> int:
    try:
        return (await http.get("/readyz")).status_code
    except httpx.TransportError:
        return 0


def record(name: str, wanted: Mapping[str, object], seconds: float, native: bool) -> Path:
    """The flame graph's file."""
    target = ROOT / "build" / "profile" / f"{name}.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    flags = ("-m", MODEL, "--port", port, "-np", SLOTS, "-c", SLOTS * 1024, "-t", 1, "--log-disable", "--no-ui")
    spy = ("record", "--output", target, "--rate", 200, "--threads", *(["--native"] if native else []), "--")
    command = [Path(sysconfig.get_path("scripts")) / "py-spy", *spy, sys.executable, "-m", "server", *flags]
    with subprocess.Popen([str(word) for word in command], cwd=ROOT) as process:
        try:
            answered = asyncio.run(load(port, wanted, seconds))
        finally:
            process.send_signal(signal.SIGINT)  # py-spy writes the file and stops the server
    print(f"{target.relative_to(ROOT)}: {answered} requests in {seconds:g} s")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each of the two")
    parser.add_argument("--native", action="store_true", help="C and C++ frames, too")
    given = parser.parse_args()
    record("step", LONG, given.seconds, given.native)
    record("request", SHORT, given.seconds, given.native)


if __name__ == "__main__":
    main()
