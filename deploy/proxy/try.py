"""Run both proxy configurations on loopback with a Llamapool server, and test them.

    python deploy/proxy/try.py NGINX CADDY      # the programs, for example from Debian's packages

Ports, names, certificates and TLS are replaced. Each proxy must forward a stream without buffering, a body of 7 MB and
a WebSocket handshake, and hide /metrics.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def running(port: int, *command: str, **environment: str) -> Iterator[None]:
    """Run a program that listens on `port` during the block."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not listen on {port}") from None
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


def nginx(folder: Path, port: int, upstream: int) -> Path:
    """Write nginx.conf inside an http block. Returns the file."""
    text = (HERE / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}").replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = re.sub(r"\s*ssl_certificate\S* .*;", "", text)
    temp = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = folder / "whole.conf"
    file.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\n{temp}access_log off;\n{text}}}\n"
    )
    return file


def caddy(folder: Path, port: int, upstream: int) -> Path:
    """Write the Caddyfile with another port and without Caddy's admin API. Returns the file."""
    text = (HERE / "Caddyfile").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    file = folder / "Caddyfile"
    file.write_text(
        "{\n\tadmin off\n\tauto_https off\n}\n" + text.replace("llm.example.org {", f"http://llm.example.org:{port} {{")
    )
    return file


def send(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    """Send a request with the site's host name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, {"Host": "llm.example.org", **fields})
    return connection.getresponse()


def stream(port: int, n_tokens: int = 600) -> str:
    """Return the times of a stream's events. Raises AssertionError if they arrive together."""
    question = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": n_tokens, "stream": True}
    body = json.dumps({**question, "ignore_eos": True}).encode()
    start = time.perf_counter()
    reply = send(port, "POST", "/v1/chat/completions", body, content_type="application/json")
    assert reply.status == 200, reply.read()
    times = [time.perf_counter() - start for line in iter(reply.readline, b"") if line.startswith(b"data: {")]
    assert len(times) > 0.8 * n_tokens, len(times)
    assert n_tokens == 1 or times[0] < 0.5 * times[-1], (times[0], times[-1])
    return f"{len(times)} events, the first after {times[0]:.2f} s, the last after {times[-1]:.2f} s"


def check(port: int, direct: int) -> str:
    """Compare the proxy's replies with the server's. Returns the times of a stream. Raises AssertionError."""
    times = stream(port)
    large = json.dumps({"content": "a word " * 1_000_000}).encode()
    replies = [send(each, "POST", "/tokenize", large, content_type="application/json") for each in (direct, port)]
    assert [reply.status for reply in replies] == [200, 200], [reply.status for reply in replies]
    assert replies[0].read() == replies[1].read()
    assert send(port, "GET", "/metrics").status == 404
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": key, "Sec_WebSocket_Version": "13"}
    assert send(port, "GET", "/v1/responses", **upgrade).status == 101
    return times


def main() -> None:
    """Check nginx, then Caddy."""
    programs = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, front, side = free_port(), free_port(), free_port()
        flags = ("-m", "models/demo.gguf", "-c", "4096", "--port", str(server), "--metrics")
        with running(server, sys.executable, "-m", "server", *flags, "--allowed-hosts", "llm.example.org"):
            while send(server, "GET", "/readyz").status != 200:
                time.sleep(0.1)
            stream(server, 1)  # the first chat starts the template sandbox
            print("direct:", stream(server))
            with running(front, programs[0], "-c", str(nginx(folder, front, server)), "-p", name):
                print("nginx: ", check(front, server))
            with running(side, programs[1], "run", "--config", str(caddy(folder, side, server)), HOME=name):
                print("caddy: ", check(side, server))


if __name__ == "__main__":
    main()
