"""A dialect's generation as an HTTP reply: one object, or a stream of events."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response

from server.dialects.common import Json
from server.dialects.dialect import Dialect, Generation, ModelRequest, ParsedRequest, Writer
from server.dialects.vectors import VectorJob
from server.dialects.warnings import as_header
from server.errors import ModelEnded
from server.media.source import Media, Seen
from server.pool.model import LoadedModel, cannot_embed, cannot_rerank
from server.pool.spec import Task
from server.serving.services import services, stream_owner
from server.serving.session import FAR_BEHIND, PromptEvents, Session
from server.transport.admission import admission_of
from server.transport.body import read_as
from server.transport.errors import JSON_TYPE, error_body, json_reply
from server.transport.sse import EventStream, while_connected

CONVERSATION = "X-Conversation-Id"


async def compute(
    request: Request, parsed: ModelRequest, work: Callable[[LoadedModel, Seen], Json], media: Sequence[Media] = ()
) -> Response:
    """Return the result of `work` with the request's model and its `media`. It is serialized in the same thread."""
    session = Session(request, salt=parsed.salt)
    try:
        preparing = session.prepare(parsed.model, lambda model, seen: orjson.dumps(work(model, seen)), media)
        written = await while_connected(request, preparing)
        headers = as_header([*parsed.warnings, *session.warnings])
        return Response(written, media_type=JSON_TYPE, headers=headers)
    finally:
        session.close()


async def embed(
    request: Request,
    model: str | None,
    task: Task,
    prepare: Callable[[LoadedModel, Seen], VectorJob],
    headers: Mapping[str, str] | None = None,
    keep_alive_s: float | None = None,
    media: Sequence[Media] = (),
) -> Response:
    """Return the reply, with `headers`, of the job that `prepare` makes. The client's disconnect cancels it."""
    state = services(request).pool.state(model, task)
    if state.info is not None and not state.info.embeds:  # known before the model is loaded
        raise cannot_rerank(state.spec.id) if task == "rerank" else cannot_embed(state.spec.id)
    session = Session(request, keep_alive_s)
    try:
        embedding = session.retried(lambda: session.embed(model, task, prepare, media))
        return Response(await while_connected(request, embedding), headers=headers, media_type=JSON_TYPE)
    finally:
        session.close()


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
        self._session = Session(request, parsed.keep_alive_s, parsed.salt)
        self._generation: Generation | None = None
        ping_s = parsed.options.sse_ping_interval
        self._ping_s: float = services(request).options.sse_ping_interval if ping_s is None else ping_s

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the reply's headers, known once the prompt is prepared."""
        return as_header([*self._parsed.warnings, *self._session.warnings])

    async def collect(self) -> Json | list[Json]:
        """Return the whole reply. A disconnect cancels the request."""
        try:
            return await while_connected(self._request, self._session.retried(self._whole))
        finally:
            self._session.close()

    async def stream(self) -> Response:
        """Return an event stream. It starts with the engine's first event, so that earlier failures have a status, or
        when the first ping is due.
        """
        conversation = self._request.headers.get(CONVERSATION)
        if conversation:
            return await self._kept(conversation)
        starting: asyncio.Task[Generation] | None = None
        try:
            # A task would cost every other request its time.
            if not self._parsed.is_ready or self._session.waits(self._parsed.model):
                starting = asyncio.create_task(self._start())
            chunks = await while_connected(self._request, self._opened(starting))
        except BaseException:
            self._give_up(starting)
            raise
        return EventStream(
            *(self._request, chunks),
            on_close=functools.partial(self._give_up, starting),
            ping_s=self._ping_s,
            headers=self.headers,
            ping=self._ping,
            media_type=self._dialect.media_type,
        )

    async def detached(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream that outlives its client. It counts among its key's concurrent requests until it
        ends. Raises errors that occur before the first event.
        """
        leave = admission_of(self._request.scope).detach()
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    yield event
        finally:
            leave()

    def fail(self, error: Exception) -> bytes:
        """Return the last event of a stream that `error` ends."""
        status, body, _ = error_body(error)
        self.failure = status, body
        write = None if self._generation is None else self._generation.error
        return (write or self._dialect.error)(status, body)

    def _ping(self) -> bytes:
        write = None if self._generation is None else self._generation.ping
        return self._dialect.ping if write is None else write()

    async def _start(self) -> Generation:
        """Submit the requests; once more if the model's process ends while it loads media."""
        session, parsed = self._session, self._parsed
        media = await parsed.loaded_media()
        generation = await session.retried(lambda: session.start(parsed.model, parsed.generation, media))
        session.announce(generation.reasoning)
        self._generation = generation
        return generation

    async def _whole(self) -> Json | list[Json]:
        generation = await self._start()
        session, writer = self._session, generation.writer
        writer.streams = False
        try:
            while True:
                while session.open:
                    number, events = await session.next()
                    for item in events:
                        writer.feed(number, item)
                if generation.follow_up is None:
                    break
                async for _ in generation.follow_up.act():
                    pass
                if not await self._next_round(generation):
                    break
        except ModelEnded as ended:
            # Tools must not be called a second time.
            has_acted = generation.follow_up is not None and generation.follow_up.has_acted
            ended.asked_again = ended.asked_again or has_acted
            raise
        if generation.commit is not None:
            await generation.commit()
        body = writer.body()
        return body if generation.convert is None else generation.convert(body)

    async def _next_round(self, generation: Generation) -> bool:
        """Start the next round of the reply. Return False if there is none."""
        following = None if generation.follow_up is None else generation.follow_up.next()
        if following is None:
            return False
        await self._session.resume(following.prepare, following.media)
        self._session.announce(generation.reasoning)
        return True

    async def _kept(self, conversation: str) -> Response:
        """Return a stream that continues when its client disconnects (`transport.resumable`)."""
        streams, owner = services(self._request).streams, stream_owner(self._request)
        stream = streams.open(owner, conversation)
        stream.is_loading = functools.partial(self._session.waits, self._parsed.model)
        leave = admission_of(self._request.scope).detach()

        def ended() -> None:
            streams.ended(owner, stream)
            leave()

        async def produce() -> None:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    stream.append(event)

        stream.produce(produce(), error=self.fail, ping=self._dialect.ping, ping_s=self._ping_s, ended=ended)
        await while_connected(self._request, stream.begin())
        media_type = self._dialect.media_type
        return EventStream(self._request, stream.read(0), ping_s=0, headers=self.headers, media_type=media_type)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            generation = await self._start()
            async with contextlib.aclosing(self._chunks(generation, await self._session.next())) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._session.close()

    async def _opened(self, starting: asyncio.Task[Generation] | None) -> AsyncGenerator[bytes, None]:
        """Return the stream when its first event is there, or when the first ping is due.

        `starting` loads the model or media.
        """
        patience_s, first = self._ping_s if self._ping_s > 0 else None, None
        if starting is not None:
            await asyncio.wait((starting,), timeout=patience_s)
            if not starting.done():
                return self._late(starting)
        generation = await (starting or self._start())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                first = await self._session.next()
        return self._chunks(generation, first)

    async def _late(self, starting: asyncio.Task[Generation]) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream that begins before its model is loaded."""
        try:
            yield self._ping()
            generation = await starting
        except Exception as error:  # noqa: BLE001 (as in `_chunks`)
            self._session.failed(error)
            yield self.fail(error)
            return
        async with contextlib.aclosing(self._chunks(generation, None)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _give_up(self, starting: asyncio.Task[Generation] | None) -> None:
        """Close the session, whose model may still be loading."""

        def ended(task: asyncio.Task[Generation]) -> None:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it
            self._session.close()

        if starting is not None:
            starting.cancel()
            starting.add_done_callback(ended)
        self._session.close()

    async def _chunks(self, generation: Generation, first: PromptEvents | None) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events one at a time, or all available ones in one piece if the stream is far behind.

        An error is the last event, as in llama-server.
        """
        session, writer = self._session, generation.writer
        try:
            if first is None:
                yield self._ping()
            else:
                for chunk in _written(writer, first):
                    yield chunk
            while True:
                while session.open:
                    chunks = _written(writer, await session.next())
                    if session.is_far_behind or len(chunks) >= FAR_BEHIND:
                        while session.ready:
                            chunks += _written(writer, await session.next())
                        chunks = [b"".join(chunks)]
                    for chunk in chunks:
                        yield chunk
                if generation.follow_up is None:
                    break
                async with contextlib.aclosing(generation.follow_up.act()) as acted:
                    async for event_ in acted:
                        yield event_
                if not await self._next_round(generation):
                    break
            if generation.commit is not None:
                await generation.commit()
            for chunk in writer.finish():
                yield chunk
        except Exception as error:  # noqa: BLE001 (the status is sent: `error_body` logs what is unexpected)
            session.failed(error)
            yield self.fail(error)
        finally:
            session.close()


def _written(writer: Writer, batch: PromptEvents) -> list[bytes]:
    number, events = batch
    if len(events) == 1:  # as for nearly all tokens
        return writer.feed(number, events[0])
    return [chunk for item in events for chunk in writer.feed(number, item)]
