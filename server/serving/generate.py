"""Makes the HTTP reply to a generating request: one object, or a stream of events."""

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

CONVERSATION_HEADER = "X-Conversation-Id"
JOINED_EVENTS = 64
"""From this number on, events that have arrived together are sent as one chunk, because the client is slow."""


async def compute(
    request: Request,
    parsed: ParsedRequest | TokensRequest,
    work: Callable[[LoadedModel, LoadedMedia], Json],
    media: Sequence[Media] = (),
) -> Response:
    """Return the result of `work` with the request's model and its `media`, serialized in the same worker thread."""
    with contextlib.closing(Session(request, salt=parsed.salt)) as session:
        preparing = session.prepare(parsed.model, lambda model, loaded: orjson.dumps(work(model, loaded)), media)
        body = await while_connected(request, preparing)
        headers = as_header([*parsed.warnings, *session.warnings])
        return Response(body, media_type=JSON_TYPE, headers=headers)


async def embed(request: Request, parsed: VectorRequest) -> Response:
    """Return the reply to a request for embeddings or reranking. A disconnect cancels it."""
    state = services(request).pool.state(parsed.model, parsed.task)
    if state.info is not None and not state.info.embeds:  # known before the model is loaded
        raise cannot_rerank(state.spec.id) if parsed.task == "rerank" else cannot_embed(state.spec.id)
    with contextlib.closing(Session(request, parsed.keep_alive_s)) as session:
        body = await while_connected(request, session.retried(lambda: session.embed(parsed)))
        return Response(body, headers=as_header(parsed.warnings), media_type=JSON_TYPE)


async def answer(request: Request, dialect: Dialect[Any]) -> Response:
    """Parse the body and return the reply, with ``stream`` as an event stream."""
    return await respond(request, dialect, await read_as(request, dialect.parse))


async def respond(request: Request, dialect: Dialect[Any], parsed: ParsedRequest) -> Response:
    """Return the reply to a parsed request, with ``stream`` as an event stream."""
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
        self._is_started = False  # whether a ping has sent the first events of the reply
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
        """Return an event stream. It starts with the engine's first event or the first ping.

        A failure before the start has an error status.
        """
        conversation = self._request.headers.get(CONVERSATION_HEADER, "")
        with contextlib.suppress(UnicodeDecodeError):  # otherwise it is latin-1, as Starlette decodes all headers
            conversation = conversation.encode("latin-1").decode()
        if conversation:
            return await self._resumable(conversation)
        starting = asyncio.create_task(self._begin())
        # Retrieve the error even if nothing awaits the task.
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())

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

    async def _resumable(self, conversation: str) -> Response:
        """Return a stream that continues when its client disconnects (`transport.resumable`)."""
        streams, owner = self._session.services.streams, stream_owner(self._request)
        media_type = self._dialect.media_type
        stream = streams.open(owner, conversation, self._parsed.model, media_type)
        leave = admission_of(self._request.scope).detach()

        def ended() -> None:
            streams.ended(owner, stream)
            leave()

        stream.produce(self.events(), error=self.fail, ping=self._dialect.ping, ping_s=self._ping_s, ended=ended)
        await while_connected(self._request, stream.begin())
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
        event = b"" if self._generation is None else self._generation.writer.failure(status, body)
        return event or self._dialect.error(status, body)

    def _ping(self) -> bytes:
        events = b"" if self._generation is None else self._generation.writer.ping()
        self._is_started = self._is_started or bool(events)
        return events or self._dialect.ping

    def _may_repeat(self) -> bool:
        """Return whether the reply may be generated again: only pings were sent, and no tool was called."""
        return self._generation is None or not self._generation.writer.has_acted

    async def _start(self) -> Generation:
        """Submit the requests. If pings have sent the first events, a retry continues with the same writer."""
        parsed, started = self._parsed, self._generation if self._is_started else None
        self._generation = started
        generation = await self._session.start(
            parsed.model, parsed.generation, parsed.media, only_tokenizes=parsed.only_tokenizes
        )
        self._generation = generation if started is None else replace(generation, writer=started.writer)
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
        """Yield the stream's events, first a ping while the requests are starting. An error is the last event."""
        try:
            if starting is not None:
                if not starting.done():
                    yield self._ping()
                await starting
            assert self._generation is not None, "the requests have been submitted"
            writer = self._generation.writer
            async with contextlib.aclosing(self._rounds(writer)) as rounds:
                async for chunks in rounds:
                    for chunk in chunks if len(chunks) < JOINED_EVENTS else (b"".join(chunks),):
                        yield chunk
            for chunk in writer.finish():
                yield chunk
        except Exception as error:  # noqa: BLE001 (the status is sent already; `error_body` logs bugs)
            self._session.failed(error)
            yield self.fail(error)
        finally:
            self._session.close()

    async def _rounds(self, writer: Writer) -> AsyncGenerator[list[bytes], None]:
        """Yield the chunks of events that have arrived together, round after round, then commit the reply."""
        while True:
            while events := await self._session.next():
                chunks: list[bytes] = []
                for number, event in events:
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
