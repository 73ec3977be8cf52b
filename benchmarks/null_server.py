"""A server that computes nothing, to measure the limit of the benchmark's client.

``python -m benchmarks.null_server PORT`` serves ``/health`` and completions of ``max_tokens`` constant tokens. Streams
have one HTTP chunk per token; other replies are one JSON object.
"""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import Any

_TEXT = " word"
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_N_PROMPT = 84


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(value: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def _usage(n_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": _N_PROMPT, "completion_tokens": n_tokens, "total_tokens": _N_PROMPT + n_tokens}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection to its end."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            n_bytes = int((head.partition(b"content-length:")[2] or b"0").split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(n_bytes)) if n_bytes else {}
            await _reply(body, writer)
            await writer.drain()
            if b"\r\nconnection: close" in head:
                break  # the benchmark's client reads a stream to the end of the connection
    writer.close()


async def _reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    n_tokens = int(body.get("max_tokens", 0))
    chat = "messages" in body
    if not body.get("stream"):
        choice = {"message": {"content": _TEXT * n_tokens}} if chat else {"text": _TEXT * n_tokens}
        whole = json.dumps({"status": "ok", "choices": [choice], "usage": _usage(n_tokens)}).encode()
        writer.write(_JSON % len(whole) + whole)
        return
    writer.write(_EVENTS)
    event = _event({"choices": [{"index": 0, **({"delta": {"content": _TEXT}} if chat else {"text": _TEXT})}]})
    for _ in range(n_tokens):
        writer.write(event)
        await asyncio.sleep(0)  # lets other streams run
    writer.write(_event({"choices": [], "usage": _usage(n_tokens)}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(_answer, "127.0.0.1", port)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
