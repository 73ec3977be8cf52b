"""A dialect's generation as an HTTP reply: one object, or a stream of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from server.dialects.common import Json
from server.dialects.dialect import Dialect, Generation, Writer
from server.dialects.generation import ParsedRequest
from server.dialects.native.tokens import TokensRequest
from server.dialects.vectors import VectorRequest
from server.dialects.warnings import as_header
from server.media.source import LoadedMedia, Media
from server.pool.model import LoadedModel, cannot_embed, cannot_rerank
from server.serving.services import services, stream_owner
from server.serving.session import Session
from server.transport.admission import admission_of
from server.transport.body import read_as
from server.transport.errors import JSON_TYPE, error_body, json_reply
from server.transport.sse import EventStream, Watch, while_connected

CONVERSATION = "X-Conversation-Id"
FAR_BEHIND = 64
"""Events of a stream that are sent as one, because its client reads slower than they are written."""


async def compute(
    request: Request,
    parsed: ParsedRequest | TokensRequest,
    work: Callable[[LoadedModel, LoadedMedia], Json],
    media: Sequence[Media] = (),
) -> Response:
    """Return the result of `work` with the request's model and its `media`. It is serialized in the same thread."""
    with contextlib.closing(Session(request, salt=parsed.salt)) as session:
        preparing = session.prepare(parsed.model, lambda model, loaded: orjson.dumps(work(model, loaded)), media)
        written = await while_connected(request, preparing)
        headers = as_header([*parsed.warnings, *session.warnings])
        return Response(written, media_type=JSON_TYPE, headers=headers)


async def embed(request: Request, parsed: VectorRequest) -> Response:
    """Return the reply with the vectors that a body requests. The client's disconnect cancels it."""
    state = services(request).pool.state(parsed.model, parsed.task)
    if state.info is not None and not state.info.embeds:  # known before the model is loaded
        raise cannot_rerank(state.spec.id) if parsed.task == "rerank" else cannot_embed(state.spec.id)
    with contextlib.closing(Session(request, parsed.keep_alive_s)) as session:
        written = await while_connected(request, session.retried(lambda: session.embed(parsed)))
        return Response(written, headers=as_header(parsed.warnings), media_type=JSON_TYPE)


async def answer(request: Request, dialect: Dialect[Any]) -> Response:
    """Read the body and return the reply, streamed or whole as the body says."""
    return await respond(request, dialect, await read_as(request, dialect.parse))


async def respond(request: Request, dialect: Dialect[Any], parsed: ParsedRequest) -> Response:
    """Return the reply to a parsed request, streamed or whole."""
    exchange = Exchange(request, dialect, parsed)
    if parsed.options.stream:
        return await exchange.stream()
    body = await exchange.collect()
    return json_reply(body, headers=exchange.headers)


class Exchange:
    """One generating request and its reply. ``failure``: status and body of the error that ended a stream."""

    def __init__(self, request: Request, dialect: Dialect[Any], parsed: ParsedRequest) -> None:
        self.failure: tuple[int, Json] | None = None
        self._request, self._dialect, self._parsed = request, dialect, parsed
        self._session = Session(request, parsed.keep_alive_s, parsed.salt, parsed.options.end_user)
        self._generation: Generation | None = None
        self._has_begun = False  # whether a ping has sent the first events of the reply
        ping_s = parsed.options.sse_ping_interval
        self._ping_s: float = self._session.services.options.sse_ping_interval if ping_s is None else ping_s

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the reply's headers, known once the prompt is prepared."""
        return as_header([*self._parsed.warnings, *self._session.warnings])

    async def collect(self) -> Json | list[Json]:
        """Return the whole reply. A disconnect cancels the request."""
        try:
            return await while_connected(self._request, self._session.retried(self._whole, self._may_repeat))
        finally:
            self._session.close()

    async def stream(self) -> Response:
        """Return an event stream. It starts with the engine's first event, so that earlier failures have a status, or
        when the first ping is due.
        """
        conversation = self._request.headers.get(CONVERSATION)
        if conversation:
            return await self._kept(conversation)
        starting = asyncio.create_task(self._begin())
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody awaits it

        def give_up() -> None:
            starting.cancel()
            self._session.close()

        try:
            with Watch(self._request.receive):
                await asyncio.wait((starting,), timeout=self._ping_s if self._ping_s > 0 else None)
            if starting.done():
                starting.result()
        except BaseException:
            give_up()
            raise
        return EventStream(
            self._request,
            self._chunks(starting),
            on_close=give_up,
            ping_s=self._ping_s,
            headers=self.headers,
            ping=self._ping,
            media_type=self._dialect.media_type,
        )

    async def _kept(self, conversation: str) -> Response:
        """Return a stream that continues when its client disconnects (`transport.resumable`)."""
        streams, owner = self._session.services.streams, stream_owner(self._request)
        stream = streams.open(owner, conversation, self._parsed.model)
        leave = admission_of(self._request.scope).detach()

        def ended() -> None:
            streams.ended(owner, stream)
            leave()

        stream.produce(self.events(), error=self.fail, ping=self._dialect.ping, ping_s=self._ping_s, ended=ended)
        await while_connected(self._request, stream.begin())
        media_type = self._dialect.media_type
        return EventStream(self._request, stream.read(0), ping_s=0, headers=self.headers, media_type=media_type)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream that outlives its client. Raises errors that occur before the first event."""
        await self._begin()
        async with contextlib.aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def fail(self, error: Exception) -> bytes:
        """Return the last event of a stream that `error` ends."""
        status, body, _ = error_body(error)
        self.failure = status, body
        begun = b"" if self._generation is None else self._generation.writer.failure(status, body)
        return begun or self._dialect.error(status, body)

    def _ping(self) -> bytes:
        begun = b"" if self._generation is None else self._generation.writer.ping()
        self._has_begun = self._has_begun or bool(begun)
        return begun or self._dialect.ping

    def _may_repeat(self) -> bool:
        """Return whether the reply may begin again: the client has no more of it than pings, and no tool was called."""
        return self._generation is None or not self._generation.writer.has_acted

    async def _start(self) -> Generation:
        """Submit the requests. The writer of a reply that pings have begun goes on, since its client has its events."""
        parsed, begun = self._parsed, self._generation if self._has_begun else None
        self._generation = begun
        generation = await self._session.start(
            parsed.model, parsed.generation, parsed.media, only_tokenizes=parsed.only_tokenizes
        )
        self._generation = generation if begun is None else replace(generation, writer=begun.writer)
        return self._generation

    async def _begin(self) -> None:
        """Submit the requests of a stream and wait for its first event. A failure closes the session."""

        async def begin() -> None:
            await self._start()
            await self._session.wait()

        try:
            await self._session.retried(begin, self._may_repeat)
        except BaseException:
            self._session.close()
            raise

    async def _whole(self) -> Json | list[Json]:
        writer = (await self._start()).writer
        writer.streams = False
        async with contextlib.aclosing(self._rounds(writer)) as rounds:
            async for _ in rounds:
                pass
        return writer.body()

    async def _chunks(self, starting: asyncio.Task[None] | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events, after a ping unless it has begun. An error is the last, as in llama-server."""
        try:
            if starting is not None:
                if not starting.done():
                    yield self._ping()
                await starting
            assert self._generation is not None, "the requests have been submitted"
            writer = self._generation.writer
            async with contextlib.aclosing(self._rounds(writer)) as rounds:
                async for chunks in rounds:
                    for chunk in chunks if len(chunks) < FAR_BEHIND else (b"".join(chunks),):
                        yield chunk
            for chunk in writer.finish():
                yield chunk
        except Exception as error:  # noqa: BLE001 (the status is sent: `error_body` logs what is unexpected)
            self._session.failed(error)
            yield self.fail(error)
        finally:
            self._session.close()

    async def _rounds(self, writer: Writer) -> AsyncGenerator[list[bytes], None]:
        """Yield what the events that have arrived together become, round after round. Commit the complete reply."""
        while True:
            while found := await self._session.next():
                chunks: list[bytes] = []
                for number, event in found:
                    chunks += writer.feed(number, event)
                yield chunks
            async with contextlib.aclosing(writer.act()) as acted:
                async for chunk in acted:
                    yield [chunk]
            following = writer.next()
            if following is None:
                await writer.commit()
                return
            await self._session.start(self._parsed.model, *following)
