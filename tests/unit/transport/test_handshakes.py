"""TLS handshakes are bounded in number, by asyncio's loop and by uvloop's."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
import uvloop

from server.transport import handshakes
from server.transport.handshakes import HANDSHAKE_S, count_handshakes
from server.transport.limits import most_handshakes
from tests.support.certificates import NEEDS_OPENSSL, make_certificate

MOST = 3
DEADLINE_S = 60.0
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

pytestmark = NEEDS_OPENSSL


@dataclass(frozen=True, slots=True)
class Echo:
    """Says a line back, over TLS."""

    port: int
    trust: ssl.SSLContext

    async def plain(self) -> Pair:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def encrypted(self) -> Pair:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname="localhost")


async def serves(pair: Pair) -> bool:
    reader, writer = pair
    writer.write(b"here\n")
    said = await reader.readline()
    writer.close()
    return said == b"here\n"


async def served_some_time(server: Echo) -> None:
    """Not at once: the server has to hear who left, and asyncio keeps what was his until it is collected."""
    while True:
        try:
            assert await serves(await server.encrypted())
            return
        except OSError:
            gc.collect()
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    key, certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    return certificate, key


@asynccontextmanager
async def echo(files: tuple[Path, Path]) -> AsyncIterator[Echo]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    count_handshakes(context, MOST)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        async with asyncio.timeout(DEADLINE_S):
            yield Echo(server.sockets[0].getsockname()[1], ssl.create_default_context(cafile=files[0]))


@LOOPS
def test_one_too_many_is_closed_until_another_has_left(loop: LoopFactory, files: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        async with echo(files) as server:
            silent = [await server.plain() for _ in range(MOST)]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.encrypted()
            silent.pop()[1].close()
            await served_some_time(server)
            for _, writer in silent:
                writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@LOOPS
def test_a_place_is_free_again_when_its_time_is_over(
    loop: LoopFactory, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with echo(files) as server:
            silent = [await server.plain() for _ in range(MOST)]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.encrypted()
            monkeypatch.setattr(handshakes, "monotonic", lambda: monotonic() + HANDSHAKE_S)
            assert await serves(await server.encrypted())
            for _, writer in silent:
                writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@LOOPS
def test_what_is_done_or_failed_takes_no_place(loop: LoopFactory, files: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        async with echo(files) as server:
            connected = [await server.encrypted() for _ in range(MOST + 1)]
            for _ in range(MOST + 1):
                reader, writer = await server.plain()
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
            connected.append(await server.encrypted())
            for each in connected:
                assert await serves(each)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_there_are_some_beside_few_connections() -> None:
    assert most_handshakes(1) == 64
    assert most_handshakes(8192) == 2048
