"""One request of a client, from the lease of its model to the last event."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from fastapi import Request as HttpRequest

from server.chat.prompt import can_show
from server.dialects.dialect import Context, Generate, Generation
from server.dialects.vectors import VectorRequest
from server.engine.cache.scope import cache_scope, is_lasting
from server.engine.request import Event, Failed, Finished, Request, Started, State, Text
from server.engine.sequence import Ticket
from server.errors import InvalidRequest, LlamapoolError, ModelEnded, NotFound, QueueFull, Unavailable, short
from server.media.bitmap import Bitmap, Document, Video, n_bytes_of
from server.media.loader import MediaSupport
from server.media.source import NO_MEDIA, FileContent, LoadedMedia, Media
from server.pool.model import Lease, LoadedModel
from server.pool.spec import Task
from server.serving.services import RunningCompletion, key_of, services, wants_load
from server.structured.grammar.attempt import Attempt, CompileLater, within
from server.telemetry.record import RECORD, ModelUse, Record, reason_of
from server.transport.admission import admission_of, scheduled_client

log = logging.getLogger(__name__)
T = TypeVar("T")
QUICK_BYTES = 2048
"""Texts up to this size, and up to the vocabulary's ``quick_bytes``, are tokenized on the event loop.

It takes 1 ms at most, less than the use of a thread."""
LONG_BYTES = 1 << 20
"""Longer texts are prepared in separate threads: tokenizing a megabyte takes up to a second."""
LONG_WITH_MEDIA = 16 << 20
"""The same limit for bodies with media, most of whose bytes are not tokenized."""
LONG_AUDIO_S = 60
"""The same limit for audio, whose spectrogram is computed whole."""
PIN = "llamapool.pin"
"""The key of an internal request's ASGI scope with the seconds for which its prompt is pinned in RAM."""
_NOT_IN_GRAPH = "backend_sampling is ignored: the model was loaded without it"
Preparation = Callable[[LoadedModel, LoadedMedia], T]
"""Blocking work with a model and the media of a request that the model supports."""


class Session:
    """Holds the lease and the engine requests of one client. `close` releases everything, at any time.

    For each round of generation call `start`, then `next` until it returns no events. `prepare` is for endpoints that
    only tokenize or render, `embed` for embeddings.

    ``services``: the application's services, with the models that the client may use. ``warnings``: fields and media of
    the request that have no effect with this model.

    The queue of events needs no limit: a request has at most as many events as its context has tokens, and the
    transport ends streams whose client does not read.
    """

    def __init__(
        self, request: HttpRequest, keep_alive_s: float | None = None, salt: str | None = None, end_user: str = ""
    ) -> None:
        """`keep_alive_s`: see `Lease.keep_alive_s`. `salt`: the body's cache salt, "" if absent, None if unknown.

        `end_user`: the end user that the body names, "" if absent.
        """
        self.warnings: list[str] = []
        self.services = services(request)
        self._request, self._keep_alive_s, self._salt, self._end_user = request, keep_alive_s, salt, end_user
        self._key = key_of(request)
        self._record: Record = request.scope[RECORD]
        self._usage = self._record.usage = ModelUse()
        self._n_body_bytes = admission_of(request.scope).n_body_bytes
        self._is_long = self._n_body_bytes > LONG_BYTES
        self._lease: Lease | None = None
        self._names_adapter = False  # whether ``model`` is the name of a LoRA adapter
        self._preparing: Future[Any] | None = None
        self._tickets: list[Ticket] = []
        self._arrived_at = 0.0  # on a retry: when the engine received the request first
        self._events: list[tuple[int, Event]] = []  # an asyncio.Queue makes a dozen calls for each token
        self._failure: Exception | None = None  # the error after these events
        self._arrival: asyncio.Future[None] | None = None  # completed by the next events

    async def prepare(self, name: str | None, work: Preparation[T], media: Sequence[Media] = ()) -> T:
        """Lease the model and run `work` in a thread. Raises the errors of the pool, the media loader and `work`."""
        with self.services.preparing.entered():
            model = await self._acquire(name)
            loaded = await self._load_media(media, model)
            return await self._in_thread(lambda: work(model, loaded))

    async def start(
        self, name: str | None, work: Generate, media: Sequence[Media] = (), *, only_tokenizes: bool = False
    ) -> Generation:
        """Lease the model, run `work` in a thread, and submit the requests of its result.

        `work` that `only_tokenizes` a short text runs on the event loop. Later rounds of a reply use the same model,
        which is loaded again if its process has ended.
        """
        with self.services.preparing.entered():
            self._names_adapter = self._names_adapter or self.services.pool.names_adapter(name)
            is_lost = self._lease is not None and not self._lease.model.serves
            if is_lost:
                self._release_lost()
            model = await self._acquire(name) if self._lease is None or is_lost else self._lease.model
            loaded = await self._load_media(media, model)
            context = Context(
                model,
                loaded,
                client=self._client(self._end_user),
                cache_scope=self._cache_scope(),
                priority=self._key.priority,
                sets_adapters="lora" in self._key.scopes,
                names_adapter=self._names_adapter,
                log_id=self._record.id,
                arrived_at=self._arrived_at,
                verbose=self.services.options.verbose,
                pin_s=self._request.scope.get(PIN, 0.0),
            )
            is_short = self._n_body_bytes <= min(QUICK_BYTES, model.vocab.quick_bytes)
            on_event_loop = only_tokenizes and is_short and not media and model.spec.shape is None
            with contextlib.nullcontext() if on_event_loop else model.engine.preparing():
                result = self._timed(work, context) if on_event_loop else await self._in_thread(lambda: work(context))
                for sampling in {request.sampling for request in result.requests}:
                    if model.engine.needs_preparation(sampling):
                        await self._in_thread(partial(model.engine.prepare_sampler, sampling), is_long=True)
                if self._names_adapter and any(request.adapters is None for request in result.requests):
                    raise NotFound(f"the LoRA adapter '{short(name or '')}' was unloaded meanwhile")
                _check_number(result.requests, model)
                self._usage.submitted_at = time.perf_counter()
                n_prompt = sum(len(request.prompt) for request in result.requests)
                for number, request in enumerate(result.requests):
                    if request.sampling.backend_sampling and not model.spec.engine.backend_sampling:
                        self.warnings.append(_NOT_IN_GRAPH)
                    self._tickets.append(
                        model.engine.submit(request, partial(self._receive, number, n_prompt=n_prompt))
                    )
                    self._usage.n_open += request.n
                self._usage.n_prompt += n_prompt  # not for refused requests, which count against no limit
            for ticket in self._tickets:  # found by their ids until `close`
                self.services.running[ticket.request.id] = RunningCompletion(
                    model.spec.id, result.reasoning, self._abort, self._key.owner
                )
        return result

    async def embed(self, parsed: VectorRequest) -> bytes:
        """Return the reply to an embedding or rerank request. Cancellation removes its inputs from the queue."""
        with self.services.preparing.entered():
            model = await self._acquire(parsed.model, parsed.task)
            embedder = model.embedder
            loaded = await self._load_media(parsed.media, model)
            with embedder.preparing():
                job = await self._in_thread(lambda: parsed.job(model, loaded))
                self._usage.submitted_at = time.perf_counter()
                computing = embedder.submit(job.inputs)
                self._usage.n_prompt += sum(map(len, job.inputs))
        try:
            vectors = await computing
        except QueueFull:  # as in `_receive`
            self._usage.n_prompt = 0
            raise
        finally:
            self._usage.prefill_s = time.perf_counter() - self._usage.submitted_at
        return await self._in_thread(lambda: job.reply(vectors))

    def _receive(self, number: int, events: list[Event], n_prompt: int = 0) -> None:
        """Count and queue events of request `number` until the first failure of any request, and wake the reader.

        `n_prompt`: prompt tokens of all requests that were submitted together.
        """
        usage = self._usage
        for event in events if self._failure is None else ():
            if type(event) is Text:  # the most frequent type
                usage.n_predicted += len(event.tokens)
            elif isinstance(event, Started):
                usage.started(event)
            elif isinstance(event, Finished):
                usage.finished(event)
            elif isinstance(event, Failed):
                self._failure = event.error
                if isinstance(event.error, QueueFull):  # of a model's process, which refuses submitted requests
                    usage.n_prompt -= n_prompt
                break
            self._events.append((number, event))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _abort(self) -> None:
        """Cancel the request on behalf of the operator: its reader gets an error and closes the session."""
        self._receive(0, [Failed(Unavailable("the request was cancelled by the operator of this server"))])

    async def wait(self) -> None:
        """Wait until `next` does not block. Raises the error of a failed request after its events."""
        while not self._events:
            if not self._usage.n_open:
                return
            if self._failure is not None:
                raise self._failure
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    async def next(self) -> list[tuple[int, Event]]:
        """Return the events that have arrived, each with the number of its request within the session.

        Waits for the first event. Returns an empty list after the end of every choice. One caller at a time. Raises the
        errors of `wait`.
        """
        await self.wait()
        events, self._events = self._events, []
        return events

    async def retried(self, work: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool] = lambda: True) -> T:
        """Return the result of `work`. If the model's process ends, run it once more, provided that `may_repeat()`."""
        try:
            return await work()
        except ModelEnded:
            if not may_repeat():
                raise
        self._arrived_at = min((ticket.submitted_at for ticket in self._tickets), default=0.0)
        log.warning("the model's process has ended: the request is retried", extra={"request": self._record.id})
        self._release_lost()
        self._lease = None  # the usage of this attempt is not counted
        self._events.clear()
        self._failure = None
        self._usage = self._record.usage = ModelUse(self._usage.model, retried=True)
        await asyncio.sleep(0)  # so that the pool notices, too, and does not lease the lost model again
        return await work()

    def _release_lost(self) -> None:
        """Release the lease of a model whose process has ended. `close` still counts the usage of earlier rounds."""
        assert self._lease is not None
        self._cancel_tickets(self._lease)
        self._lease.release()

    def _placed_at(self, lease: Lease) -> float:
        """Return when the last choice that has a slot got it; 0 = none has one."""
        ids = {ticket.request.id for ticket in self._tickets}
        choices = [slot.choice for slot in lease.model.engine.slots() if slot.choice is not None]
        return max((choice.placed_at for choice in choices if choice.request in ids), default=0.0)

    def _cancel_tickets(self, lease: Lease) -> None:
        for ticket in self._tickets:
            self.services.running.pop(ticket.request.id, None)
            if self._usage.n_open:
                lease.model.engine.cancel(ticket)
        self._tickets.clear()

    def failed(self, error: Exception) -> None:
        """Record the error that ends a reply after its start."""
        self._record.error = reason_of(error)

    def close(self) -> None:
        """Cancel running requests, count their usage and release the lease. Later calls do nothing."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        usage = self._usage
        self.services.rates.charge(self._key, usage.n_prompt + usage.n_predicted)
        placed_at = self._placed_at(lease) if usage.n_open and not usage.decoding_since else 0.0
        self._cancel_tickets(lease)
        usage.cut_off(State.CANCELLED if self._failure is None else State.FAILED, placed_at)
        self.services.metrics.used(usage, self._key.name)
        self.services.usage.add(
            self._key.name, usage.model, prompt=usage.n_prompt, cached=usage.n_cached, completion=usage.n_predicted
        )
        preparing = self._preparing
        if preparing is None or preparing.done():
            lease.release()
            return
        # The thread still uses the model's vocabulary, so the model must not be freed yet.
        loop = asyncio.get_running_loop()
        preparing.add_done_callback(lambda _: loop.call_soon_threadsafe(lease.release))

    async def _acquire(self, name: str | None, task: Task = "generate") -> LoadedModel:
        self._usage.began_at = started_at = time.perf_counter()
        pool = self.services.pool
        try:
            self._lease = await pool.acquire(name, autoload=wants_load(self._request), task=task)
        except BaseException:
            with contextlib.suppress(LlamapoolError):  # the model is unknown
                self._usage.model = pool.resolve(name, task).id
            raise
        finally:
            self._usage.load_s += time.perf_counter() - started_at
        self._lease.keep_alive_s = self._keep_alive_s
        self._usage.model = self._lease.model.spec.id
        return self._lease.model

    async def _load_media(self, media: Sequence[Media], model: LoadedModel) -> LoadedMedia:
        """Fetch and decode the `media` that the model supports. Adds a warning for each one that is not used."""
        if not media:
            return NO_MEDIA
        self._is_long = self._n_body_bytes > LONG_WITH_MEDIA
        reader, is_supported = model.media, can_show(model)
        supported = [each for each in media if is_supported(each)]
        support = MediaSupport() if reader is None else MediaSupport(reader.kinds, reader.sample_rate)
        # Properties of decoded media are remembered within a cache namespace. None: not at all.
        namespace = None if self._salt is None else self._cache_scope()
        namespace = namespace if namespace is not None and is_lasting(namespace) else None
        loader = self.services.media_loader
        client = self._client("")
        loaded = await loader.load(supported, support, namespace, self._stored_file, client) if supported else {}
        n_document_bytes, n_samples, lost, notes = 0, 0, [], []
        for each in media:
            content = None if each.source is None else loaded.get(each.source)
            if content is None:
                lost.append(f"{each.at}: {each.lost if is_supported(each) else each.placeholder}")
            elif isinstance(content, Document):
                notes += [f"{each.at}: {note}" for note in content.notes]
                n_document_bytes += n_bytes_of(content)
            elif isinstance(content, Bitmap) and content.kind == "audio":
                n_samples += content.width
            elif isinstance(content, Video) and content.has_audio:
                notes.append(f"{each.at}: the audio track of a video is not used")
        self.warnings = lost + notes
        self._is_long |= n_document_bytes > LONG_BYTES or n_samples > LONG_AUDIO_S * support.sample_rate
        return loaded

    async def _stored_file(self, file_id: str) -> FileContent | None:
        state = self.services.state
        file = await state.get(self._key.owner, "file", file_id)
        data = None if file is None else await state.data(self._key.owner, file_id)
        return None if file is None or data is None else FileContent(data, str(file.get("filename", "")))

    def _client(self, end_user: str) -> str:
        return scheduled_client(self._request.scope, end_user, several_keys=self.services.keys.several)

    def _cache_scope(self) -> str:
        """Return the cache namespace of the request. The body's salt overrides the header's, as in vLLM."""
        salt = self._salt or self._record.headers.get(b"x-cache-salt", b"").decode("latin-1")
        return cache_scope(self.services.cache_mode, self._key.owner, salt)

    def _timed(self, work: Generate, context: Context) -> Generation:
        started_at = time.perf_counter()
        try:
            return work(context)
        finally:
            self._usage.prepare_s += time.perf_counter() - started_at

    async def _in_thread(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Run `work` in a thread. If its grammar is not compiled yet, repeat it in a thread that may compile it."""
        started_at = time.perf_counter()
        try:
            if is_long or self._is_long:
                return await self._run(self.services.prepare_long, work)
            return await self.services.prepare.run(self._client(""), partial(_within, None, work), self._set_preparing)
        except CompileLater:
            compiling, attempt = self.services.compiling, Attempt()
            async with compiling.turn(self._client("")):
                try:
                    return await self._run(compiling.threads, work, attempt)
                except asyncio.CancelledError:  # a disconnect ends the compilation
                    attempt.cancel()
                    raise
        finally:
            self._usage.prepare_s += time.perf_counter() - started_at

    async def _run(self, threads: Executor, work: Callable[[], T], attempt: Attempt | None = None) -> T:
        running = threads.submit(_within, attempt, work)
        self._set_preparing(running)
        return await asyncio.wrap_future(running)

    def _set_preparing(self, running: Future[Any]) -> None:
        self._preparing = running


def _within(attempt: Attempt | None, work: Callable[[], T]) -> T:
    with within(attempt):
        return work()


def _check_number(requests: Sequence[Request], model: LoadedModel) -> None:
    """Raise `InvalidRequest` for more prompts than an idle server can queue: repeating the request would not help."""
    n_choices = sum(request.n for request in requests)
    places = model.engine.n_slots + model.spec.native.instances * model.spec.engine.max_queue
    if len(requests) > 1 and n_choices - requests[-1].n >= places:
        raise InvalidRequest(
            f"{n_choices} choices of {len(requests)} prompts are more than {places}, which the slots and max_queue "
            "allow; send fewer prompts",
            "prompt",
        )
