"""Run both proxy configurations on loopback with a Llamapool server, and check what passes.

    python deploy/proxy/try.py NGINX CADDY      # the programs, e.g. of Debian's packages

Ports, names, certificates and TLS are replaced; the rest is as in the files. Each proxy must pass a stream in pieces
(the first one long before the last), a body of 7 MB and a WebSocket handshake, and hide /metrics.
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
    """Return a port that was free a moment ago."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def running(port: int, *command: str, **environment: str) -> Iterator[None]:
    """Run a program that listens on `port` while the block runs."""
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
    """Write nginx.conf inside an http block; return the file."""
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
    """Write the Caddyfile with another port, without Caddy's administration; return the file."""
    text = (HERE / "Caddyfile").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    file = folder / "Caddyfile"
    file.write_text(
        "{\n\tadmin off\n\tauto_https off\n}\n" + text.replace("llm.example.org {", f"http://llm.example.org:{port} {{")
    )
    return file


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    """Send one request with the site's name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, {"Host": "llm.example.org", **given})
    return connection.getresponse()


def stream(port: int, n_tokens: int = 600) -> str:
    """Return the times of a stream's events. Raises AssertionError if they arrive together."""
    question = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": n_tokens, "stream": True}
    body = json.dumps({**question, "ignore_eos": True}).encode()
    began = time.perf_counter()
    reply = ask(port, "POST", "/v1/chat/completions", body, content_type="application/json")
    assert reply.status == 200, reply.read()
    times = [time.perf_counter() - began for line in iter(reply.readline, b"") if line.startswith(b"data: {")]
    assert len(times) > 0.8 * n_tokens, len(times)
    assert n_tokens == 1 or times[0] < 0.5 * times[-1], (times[0], times[-1])
    return f"{len(times)} events, the first after {times[0]:.2f} s, the last after {times[-1]:.2f} s"


def look(port: int, direct: int) -> str:
    """Compare the proxy's replies with the server's own; return the stream's times. Raises AssertionError."""
    said = stream(port)
    large = json.dumps({"content": "a word " * 1_000_000}).encode()
    for_both = [ask(each, "POST", "/tokenize", large, content_type="application/json") for each in (direct, port)]
    assert [reply.status for reply in for_both] == [200, 200], [reply.status for reply in for_both]
    assert for_both[0].read() == for_both[1].read()
    assert ask(port, "GET", "/metrics").status == 404
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": key, "Sec_WebSocket_Version": "13"}
    assert ask(port, "GET", "/v1/responses", **upgrade).status == 101
    return said


def main() -> None:
    """Check nginx, then Caddy."""
    programs = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, front, side = free_port(), free_port(), free_port()
        words = ("-m", "models/demo.gguf", "-c", "4096", "--port", str(server), "--metrics")
        with running(server, sys.executable, "-m", "server", *words, "--allowed-hosts", "llm.example.org"):
            while ask(server, "GET", "/readyz").status != 200:
                time.sleep(0.1)
            stream(server, 1)  # the first one starts what renders templates
            print("direct:", stream(server))
            with running(front, programs[0], "-c", str(nginx(folder, front, server)), "-p", name):
                print("nginx: ", look(front, server))
            with running(side, programs[1], "run", "--config", str(caddy(folder, side, server)), HOME=name):
                print("caddy: ", look(side, server))


if __name__ == "__main__":
    main()
