"""Requests of the comparison's own scenarios to a fake server, and figures computed from replies."""

import asyncio
from contextlib import suppress

import pytest

from benchmarks.compare.scenarios import decode_rate, send_requests
from server.bench.client import ClientRecord, ModelClient, parse_target


@pytest.mark.parametrize(("head", "n_connections"), [("", 1), ("Connection: close\r\n", 3)])
async def test_requests_reuse_a_connection_that_stays_open(head: str, n_connections: int) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(f"HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        target = parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        body = {"model": None}  # fields with None are omitted
        assert len(await send_requests(ModelClient(target), [body] * 3, 1)) == 3
    assert len(connections) == n_connections


@pytest.mark.parametrize(("events", "rate"), [([10, 11, 12], 1.0), ([10, 10, 10, 10], 0.4)])
def test_decode_rate_uses_the_time_between_tokens_if_it_is_not_zero(events: list[float], rate: float) -> None:
    record = ClientRecord(events=events, done=events[-1], n_predicted=len(events))
    assert decode_rate(record) == pytest.approx(rate)
