"""A wire format's generation as an HTTP reply: one object, or a stream of events."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import orjson
from fastapi import Request
from fastapi.responses import Response

from server.chat.conversation import Media
from server.dialects.common import Json, event, openai_error
from server.dialects.generation import Generation, GenerationFields, ReplyWriter, StreamWriter
from server.dialects.messages.read import MessagesBody
from server.dialects.warnings import with_warnings
from server.errors import ModelEnded
from server.media.source import Seen
from server.pool.model import LoadedModel
from server.routes.services import services, stream_owner
from server.routes.session import FAR_BEHIND, PromptEvents, Session, session_of
from server.transport.errors import JSON_TYPE, error_body, json_reply
from server.transport.limits import PLACE
from server.transport.sse import EVENTS_TYPE, PING, event_stream, while_connected

CONVERSATION = "X-Conversation-Id"
Prepare = Callable[[LoadedModel, Seen], Generation]
Before = Callable[[], Awaitable[Sequence[Media]]]


@dataclass(frozen=True, slots=True)
class StreamDialect:
    """A dialect's stream conventions besides its writer's events: the last event of a failed stream (from status and
    body), keep-alive pings, and the media type.
    """

    error: Callable[[int, Json], bytes]
    ping: Callable[[], bytes] = lambda: PING
    media_type: str = EVENTS_TYPE


OPENAI_WORDS = StreamDialect(lambda status, body: event(openai_error(status, body)))


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A route's request to a model. `prepare` creates the generation in a thread, after `media` are decoded. ``before``
    is awaited first and returns the media to use instead. ``headers`` are added to the reply. ``salt``: see
    `session_of`. ``ping_s``: seconds between pings, 0 or less = none; None = as configured.
    """

    model: str | None
    prepare: Prepare
    media: Sequence[Media] = ()
    headers: Mapping[str, str] | None = None
    salt: str | None = None
    keep_alive_s: float | None = None
    ping_s: float | None = None
    words: StreamDialect = OPENAI_WORDS
    before: Before | None = None

    def with_error(self, error: Callable[[int, Json], bytes]) -> "GenerationRequest":
        """Return the same with another last event of a stream that fails."""
        return replace(self, words=replace(self.words, error=error))


async def compute(
    request: Request,
    model: str | None,
    work: Callable[[LoadedModel, Seen], Json],
    headers: Mapping[str, str] | None = None,
    media: Sequence[Media] = (),
    salt: str | None = None,
) -> Response:
    """The result of `work` with a model and the request's `media`, under a lease, with extra `headers`. It is written
    as JSON where it was made, in a thread. ``salt``: see `session_of`."""
    session = session_of(request, salt=salt)
    try:
        preparing = session.prepare(model, lambda loaded, seen: orjson.dumps(work(loaded, seen)), media)
        written = await while_connected(request, preparing)
        return Response(written, media_type=JSON_TYPE, headers=with_warnings(headers, session.warnings))
    finally:
        session.close()


async def answer(
    request: Request,
    body: GenerationFields | MessagesBody,
    prepare: Prepare,
    headers: Mapping[str, str] | None = None,
    media: Sequence[Media] = (),
    words: StreamDialect = OPENAI_WORDS,
    before: Before | None = None,
) -> Response:
    """Return the reply, streamed or whole as `body` says, with extra `headers`. `media` are decoded for `prepare`.
    `before`: see `GenerationRequest`.
    """
    ask = GenerationRequest(
        *(body.model, prepare, media, headers, body.cache_salt or ""),
        ping_s=body.sse_ping_interval,
        words=words,
        before=before,
    )
    return await (stream if body.stream else reply)(request, ask)


async def reply(request: Request, ask: GenerationRequest) -> Response:
    """The whole reply in one object. The client's disconnect cancels the request at once."""
    found, headers = await collected(request, ask)
    return json_reply(found, headers=headers)


async def collected(request: Request, ask: GenerationRequest) -> tuple[Json | list[Json], Mapping[str, str] | None]:
    """Return the whole reply and its headers. A disconnect cancels the request."""
    session = session_of(request, ask.keep_alive_s, ask.salt)
    try:
        found = await while_connected(request, _collect(session, ask))
    finally:
        session.close()
    return found, with_warnings(ask.headers, session.warnings)


async def _start(session: Session, ask: GenerationRequest) -> Generation:
    """Begin; once more where the model's process ends while it reads media."""
    media = ask.media if ask.before is None else await ask.before()
    try:
        generation = await session.start(ask.model, ask.prepare, lambda g: g.requests, media)
    except ModelEnded as ended:
        session.ask_again(ended)
        generation = await session.start(ask.model, ask.prepare, lambda g: g.requests, media)
    session.announce(generation.reasoning)
    return generation


async def _collect(session: Session, ask: GenerationRequest) -> Json | list[Json]:
    """Collect a whole reply; if the model's process ends meanwhile, the request is retried once."""
    try:
        return await _said(session, await _start(session, ask))
    except ModelEnded as ended:
        session.ask_again(ended)
        return await _said(session, await _start(session, ask))


async def _said(session: Session, generation: Generation) -> Json | list[Json]:
    writer = cast(ReplyWriter, generation.writer)
    try:
        while True:
            while session.open:
                number, events = await session.next()
                for item in events:
                    writer.feed(number, item)
            async for _ in _acted(generation):
                pass
            if not await _continued(session, generation):
                break
    except ModelEnded as ended:
        # Tools must not be called a second time.
        ended.asked_again = ended.asked_again or (generation.follow_up is not None and generation.follow_up.has_acted)
        raise
    if generation.commit is not None:
        await generation.commit()
    return writer.body()


async def _acted(generation: Generation) -> AsyncGenerator[bytes, None]:
    """Run the server-side tools after a round; yield their events."""
    if generation.follow_up is not None:
        async with contextlib.aclosing(generation.follow_up.act()) as events:
            async for event_ in events:
                yield event_


async def _continued(session: Session, generation: Generation) -> bool:
    """Start the next round of the reply. Return False if there is none."""
    following = None if generation.follow_up is None else generation.follow_up.next()
    if following is None:
        return False
    await session.resume(following.prepare, lambda g: g.requests, following.media)
    session.announce(generation.reasoning)
    return True


async def stream(request: Request, ask: GenerationRequest) -> Response:
    """Return an event stream. It starts with the engine's first event, so that earlier failures have a status, or when
    the first ping is due.
    """
    session = session_of(request, ask.keep_alive_s, ask.salt)
    ping_s = services(request).options.sse_ping_interval_s if ask.ping_s is None else ask.ping_s
    conversation = request.headers.get(CONVERSATION)
    if conversation:
        return await _kept(request, conversation, session, ask, ping_s)
    patience_s = ping_s if ping_s > 0 else None
    close: Callable[[], object] = session.close
    try:
        # A task would cost every other request its time.
        if ask.media or ask.before or session.waits(ask.model):
            starting = asyncio.create_task(_start(session, ask))
            close = functools.partial(_give_up, starting, session)
            chunks = await while_connected(request, _patient(session, starting, patience_s, ask.words))
        else:
            generation, first = await while_connected(request, _begin(session, ask, patience_s))
            chunks = _chunks(session, generation, first, ask.words)
    except BaseException:
        close()
        raise
    return event_stream(
        *(request, chunks),
        on_close=close,
        ping_s=ping_s,
        headers=with_warnings(ask.headers, session.warnings),
        ping=ask.words.ping,
        media_type=ask.words.media_type,
    )


async def _kept(
    request: Request, conversation: str, session: Session, ask: GenerationRequest, ping_s: float
) -> Response:
    """Return a stream that continues when its client disconnects (`transport.resumable`)."""
    streams, owner, words = services(request).streams, stream_owner(request), ask.words
    stream = streams.open(owner, conversation)
    stream.is_loading = functools.partial(session.waits, ask.model)
    leave: Callable[[], object] = request.scope.pop(PLACE, lambda: None)  # its key's place among those at once

    def ended() -> None:
        streams.ended(owner, stream)
        leave()

    async def produce() -> None:
        async with contextlib.aclosing(_events(session, ask)) as events:
            async for event in events:
                stream.append(event)

    stream.produce(
        produce(),
        error=lambda error: words.error(*error_body(error)[:2]),
        ping=words.ping(),
        ping_s=ping_s,
        ended=ended,
    )
    await while_connected(request, stream.begin())
    headers = with_warnings(ask.headers, session.warnings)
    return event_stream(request, stream.read(0), ping_s=0, headers=headers, media_type=words.media_type)


async def _events(session: Session, ask: GenerationRequest) -> AsyncGenerator[bytes, None]:
    try:
        generation = await _start(session, ask)
        async with contextlib.aclosing(_chunks(session, generation, await session.next(), ask.words)) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        session.close()


async def detached(request: Request, ask: GenerationRequest) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream that outlives its client. It counts among its key's concurrent requests until it
    ends. Raises errors that occur before the first event.
    """
    leave: Callable[[], object] = request.scope.pop(PLACE, lambda: None)
    try:
        async with contextlib.aclosing(_events(session_of(request, ask.keep_alive_s, ask.salt), ask)) as events:
            async for event in events:
                yield event
    finally:
        leave()


async def _begin(
    session: Session, ask: GenerationRequest, patience_s: float | None
) -> tuple[Generation, PromptEvents | None]:
    return await _start(session, ask), await _first(session, patience_s)


async def _first(session: Session, patience_s: float | None) -> PromptEvents | None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            return await session.next()
    return None


async def _patient(
    session: Session, starting: asyncio.Task[Generation], patience_s: float | None, words: StreamDialect
) -> AsyncGenerator[bytes, None]:
    """The stream of a model that is being loaded, or of media that are, once they are or the first ping is due."""
    await asyncio.wait((starting,), timeout=patience_s)
    if not starting.done():
        return _late(session, starting, words)
    return _chunks(session, starting.result(), await _first(session, patience_s), words)


async def _late(
    session: Session, starting: asyncio.Task[Generation], words: StreamDialect
) -> AsyncGenerator[bytes, None]:
    """The events of a stream that has begun before its model was there."""
    try:
        yield words.ping()
        generation = await starting
    except Exception as error:  # noqa: BLE001 (as in `_chunks`)
        session.failed(error)
        status, body, _ = error_body(error)
        yield words.error(status, body)
        return
    async with contextlib.aclosing(_chunks(session, generation, None, words)) as chunks:
        async for chunk in chunks:
            yield chunk


def _give_up(starting: asyncio.Task[Generation], session: Session) -> None:
    """Close a session that may still be getting its model."""

    def ended(task: asyncio.Task[Generation]) -> None:
        if not task.cancelled():
            task.exception()  # told, or of no interest any more
        session.close()

    starting.cancel()
    starting.add_done_callback(ended)
    session.close()


async def _chunks(
    session: Session, generation: Generation, first: PromptEvents | None, words: StreamDialect
) -> AsyncGenerator[bytes, None]:
    """Yield the stream's events one at a time, or all available ones in one piece if the stream is far behind.

    An error is the last event, as in llama-server.
    """
    writer = cast(StreamWriter, generation.writer)
    try:
        if first is None:
            yield words.ping()
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
            async with contextlib.aclosing(_acted(generation)) as acted:
                async for event_ in acted:
                    yield event_
            if not await _continued(session, generation):
                break
        if generation.commit is not None:
            await generation.commit()
        for chunk in writer.finish():
            yield chunk
    except Exception as error:  # noqa: BLE001 (the status is sent: `error_body` logs what is unexpected)
        session.failed(error)
        status, body, _ = error_body(error)
        yield words.error(status, body)
    finally:
        session.close()


def _written(writer: StreamWriter, batch: PromptEvents) -> list[bytes]:
    number, events = batch
    if len(events) == 1:  # as for nearly all tokens
        return writer.feed(number, events[0])
    return [chunk for item in events for chunk in writer.feed(number, item)]
