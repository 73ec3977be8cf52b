"""Clients without an SDK, as people write them: chunk by chunk without a parser, and line by line."""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.real_server import RealServer

CHAT = "/v1/chat/completions"


def stopping(server: RealServer) -> dict[str, Any]:
    """A request whose stream ends with ``stop``, as such clients expect."""
    body = {"model": "any", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "ignore_eos": True}
    text = server.post(CHAT, {**body, "max_tokens": 40})["choices"][0]["message"]["content"]
    return {**body, "max_tokens": 200, "stop": [text[20:23]], "stream": True}


def chunk_by_chunk(chunks: list[bytes]) -> Iterator[str]:
    """The loop of a well-known tutorial: each HTTP chunk is taken for one event, ``content`` for always a string."""
    for chunk in chunks:
        raw_json = chunk.decode("utf-8")
        if raw_json == "[DONE]":
            break
        if raw_json.startswith("data: "):
            raw_json = raw_json[6:]
        choices = json.loads(raw_json).get("choices", None)
        assert choices, "Invalid response from the server."
        if choices[0].get("finish_reason", None) == "stop":
            break
        content = choices[0]["delta"].get("content", None)
        assert content is not None, "Content did not exist in the response."
        yield content


def line_by_line(body: bytes) -> Iterator[str]:
    """What ``iter_lines`` clients do: skip what is empty, end at ``[DONE]``."""
    for line in body.decode().split("\n"):
        if not line.startswith("data: "):
            assert line == ""
            continue
        if line == "data: [DONE]":
            return
        delta = json.loads(line[len("data: ") :])["choices"][0]["delta"]
        yield delta.get("content", "")
    raise AssertionError("the stream ended without [DONE]")


def test_a_client_that_reads_chunk_by_chunk(server: RealServer) -> None:
    body = stopping(server)
    whole = server.post(CHAT, {**body, "stream": False})["choices"][0]["message"]["content"]
    assert "".join(chunk_by_chunk(server.raw_chunks(CHAT, body))) == whole


def test_a_client_that_reads_line_by_line(server: RealServer) -> None:
    body = stopping(server)
    whole = server.post(CHAT, {**body, "stream": False})["choices"][0]["message"]["content"]
    reply = server.request("POST", CHAT, body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "".join(line_by_line(reply.body)) == whole
