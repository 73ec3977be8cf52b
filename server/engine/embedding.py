"""The embedding engine: a queue of inputs, and instances that take from it, each a native context with its step thread.

Requests take turns, one input at a time, so a request with two thousand inputs hardly delays one with a single input.
Inputs are never split.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from server.engine.arrivals import Arrivals
from server.engine.instances import Instances, StepThread, has_failed
from server.engine.media import MediaPrompt, text_of
from server.engine.params import EngineParams
from server.engine.runner_api import EmbedderInfo, EmbeddingRunner, Pooling, Vectors
from server.engine.snapshots import SlotSnapshot
from server.engine.stats import EngineStats
from server.errors import CONTAINED, ContextExceeded, InternalError, InvalidRequest, LlamapoolError, request_queue_full

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EmbeddingJob:
    """One request with its inputs, none of them empty. Step threads add the ``results``, by input, or the ``error``
    that ends it. ``future``, for the client, is completed on the event loop.
    """

    inputs: Sequence[MediaPrompt]
    submitted_at: float
    future: asyncio.Future[list[Vectors]]
    n_taken: int = 0  # inputs taken for a decode
    results: dict[int, Vectors] = field(default_factory=dict)
    error: LlamapoolError | None = None
    ended: bool = False  # its outcome is known, or it was cancelled


Piece: TypeAlias = tuple[EmbeddingJob, int]
"""One input of a decode: its job and its index."""


class EmbeddingQueue:
    """Jobs with inputs that no instance has taken yet; the first is served next. Thread-safe."""

    def __init__(self, n_instances: int = 1) -> None:
        self._jobs: deque[EmbeddingJob] = deque()
        self._takers = set(range(n_instances))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[EmbeddingJob]:
        return iter([job for job in list(self._jobs) if not job.ended])

    def add(self, job: EmbeddingJob) -> bool:
        """Queue a job. Return False, without queueing it, if no instance is left."""
        with self._lock:
            if self._takers:
                self._jobs.append(job)
            return bool(self._takers)

    def close(self, instance: int) -> list[EmbeddingJob]:
        """Stop an instance from taking inputs; remove and return the jobs for which no instance is left."""
        with self._lock:
            self._takers.discard(instance)
            return [] if self._takers else [self._jobs.popleft() for _ in range(len(self._jobs))]

    def take(self, n_seq: int, n_tokens: int) -> list[Piece]:
        """Return the inputs of the next decode: at most `n_seq`, with at most `n_tokens` in total. The first one may
        exceed that, but is then alone. A job whose next input does not fit keeps its turn.
        """
        pieces: list[Piece] = []
        total = 0
        skipped: list[EmbeddingJob] = []
        with self._lock:
            while self._jobs and len(pieces) < n_seq and total < n_tokens:
                job = self._jobs.popleft()
                if job.ended:
                    continue
                size = len(job.inputs[job.n_taken])
                if pieces and total + size > n_tokens:
                    skipped.append(job)
                    continue
                pieces.append((job, job.n_taken))
                total += size
                job.n_taken += 1
                if job.n_taken < len(job.inputs):
                    self._jobs.append(job)
            self._jobs.extendleft(reversed(skipped))
        return pieces


class EmbeddingInstance(StepThread):
    """Takes inputs from `queue` and decodes them until stopped."""

    def __init__(
        self,
        runner: EmbeddingRunner,
        params: EngineParams,
        queue: EmbeddingQueue,
        number: int,
        clock: Callable[[], float],
        arrivals: Arrivals,
        deliver: Callable[[list[EmbeddingJob]], None],
    ) -> None:
        super().__init__("llamapool-embed", number, params, clock, arrivals)
        self.runner: EmbeddingRunner = runner
        self.running: Sequence[Piece] = ()  # in the current decode
        self._queue, self._deliver = queue, deliver
        self._n_served = [0] * runner.info.n_seq

    def give_up(self, error: LlamapoolError) -> None:
        self._end_all(error)

    def slots(self) -> Iterator[SlotSnapshot]:
        """Iterate over one slot per input that a decode can carry."""
        running, info = self.running, self.runner.info
        for i, n_served in enumerate(self._n_served):
            n_tokens = len(running[i][0].inputs[running[i][1]]) if i < len(running) else 0
            yield SlotSnapshot(self.number * info.n_seq + i, info.n_ctx_seq, n_tokens > 0, n_served, n_tokens)

    # ---- the step thread

    def _iterate(self) -> None:
        self._woken.clear()
        info = self.runner.info
        if self._arrivals.expected and sum(len(job.inputs) - job.n_taken for job in self._queue) < info.n_seq:
            self._gather()
        self.running = self._queue.take(info.n_seq, info.n_pack)
        if not self.running:
            if not self._is_wanted:
                self._rest()
            return
        started = self._clock()
        for slot, (job, index) in enumerate(self.running):
            self._n_served[slot] += 1
            if index == 0:
                self.stats.queue_time.observe(started - job.submitted_at)
        self._compute(self.running)
        self.last_s = self._clock() - started
        self.stats.prompt_seconds += self.last_s
        jobs, self.running = dict.fromkeys(job for job, _ in self.running), ()
        self._end(job for job in jobs if job.error is not None or len(job.results) == len(job.inputs))

    def _compute(self, pieces: Sequence[Piece]) -> None:
        """Decode `pieces` together; if the library rejects that, each alone, so that only the faulty job fails."""
        try:
            found = self._embed([job.inputs[index] for job, index in pieces])
        except CONTAINED as error:
            if all(job.ended for job, _ in pieces):
                return
            log.error(
                "a decode of %d inputs failed, each is tried by itself; a smaller n_batch takes less memory: %r",
                len(pieces),
                error,
            )
            if len(pieces) == 1:
                no_memory = InternalError("there is no memory for this input")
                pieces[0][0].error = error if isinstance(error, LlamapoolError) else no_memory
                return
            for piece in pieces:
                if piece[0].error is None:
                    self._compute([piece])
            return
        for (job, index), vectors in zip(pieces, found, strict=True):
            job.results[index] = vectors

    def _on_part(self) -> None:
        """Record progress within a decode. Raises `InternalError` if all of its jobs were cancelled."""
        self.heartbeat += 1
        if all(job.ended for job, _ in self.running):
            raise InternalError("the request was cancelled")

    def _embed(self, inputs: Sequence[MediaPrompt]) -> list[Vectors]:
        text = [one.tokens for one in inputs if not one.spans]
        vectors = iter(self.runner.embed(text, self._on_part) if text else ())
        found = [next(vectors) if not one.spans else self.runner.embed_media(one, self._on_part) for one in inputs]
        sizes = [len(one) for one in inputs]
        self.stats.n_decode += 1
        self.stats.n_busy_slots += len(inputs)
        self.stats.prompt_tokens += sum(sizes)
        self.stats.n_tokens_max = max(self.stats.n_tokens_max, *sizes)
        return found

    def _end(self, jobs: Iterable[EmbeddingJob], error: LlamapoolError | None = None) -> None:
        """End `jobs`, except those that have ended, with their own error or `error`, if any. Thread-safe."""
        ended = [job for job in jobs if not job.ended]
        for job in ended:
            job.ended, job.error = True, job.error or error
            if job.error is None:
                self.stats.request_duration.observe(self._clock() - job.submitted_at)
        if ended:
            self._arrivals.replied()
            self._deliver(ended)

    def _fail_all(self, error: LlamapoolError) -> None:
        """Fail the jobs of the current decode; others wait for the next one."""
        jobs, self.running = {job for job, _ in self.running} or set(self._queue), ()
        self._end(jobs, error)

    def _end_all(self, error: LlamapoolError) -> None:
        jobs, self.running = {job for job, _ in self.running} | set(self._queue.close(self.number)), ()
        self._end(jobs, error)


class EmbeddingEngine(Instances[EmbeddingInstance]):
    """Computes embeddings. A request is a list of inputs; requests of all clients share decodes."""

    def __init__(
        self, runners: Sequence[EmbeddingRunner], params: EngineParams, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.info = runners[0].info
        super().__init__(params, self.info.n_seq, loop)
        self.takes_media = runners[0].takes_media
        self.vocab = runners[0].vocab
        self.n_ctx_seq = self.info.n_ctx_seq
        self._queue = EmbeddingQueue(len(runners))
        self._open: set[EmbeddingJob] = set()
        shared = self._clock, self._arrivals, self._post
        self._start([EmbeddingInstance(runner, params, self._queue, i, *shared) for i, runner in enumerate(runners)])

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request; the future has the vectors of each input, in order. Cancelling it frees its place.

        Raises InvalidRequest, ContextExceeded, QueueFull, ShuttingDown, Unavailable or InternalError; nothing was
        queued then.
        """
        self._check_open()
        if not inputs:
            raise InvalidRequest('"input" must not be empty', "input")
        prompts = [one if isinstance(one, MediaPrompt) else MediaPrompt(list(one)) for one in inputs]
        for prompt in prompts:
            check_input(prompt, self.info, self.vocab.n_tokens, media=self.takes_media)
        if self.n_load >= len(self._instances) * self.params.max_queue + self.n_slots:
            raise request_queue_full(self.n_load - self.n_slots, self._retry_after_s())
        job = EmbeddingJob(prompts, self._clock(), self._loop.create_future())
        if not self._queue.add(job):  # the last instance has failed meanwhile
            raise has_failed(self.failure)
        self._open.add(job)
        self._arrivals.expect()  # others may follow it
        job.future.add_done_callback(lambda _: self._ended_or_cancelled(job))
        return job.future

    def _ended_or_cancelled(self, job: EmbeddingJob) -> None:
        job.ended = True
        self._open.remove(job)
        self._on_ended()

    def _post(self, ended: list[EmbeddingJob]) -> None:
        """Deliver the outcomes of a decode with one call into the event loop. Thread-safe."""
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(_deliver, ended)

    @property
    def n_load(self) -> int:
        """Jobs that wait or run; exact on the event loop."""
        return len(self._open)

    @property
    def stats(self) -> EngineStats:
        total = super().stats
        running = self._open & {job for instance in self._instances for job, _ in instance.running}
        total.n_processing, total.n_deferred = len(running), len(self._open) - len(running)
        return total

    def slots(self) -> list[SlotSnapshot]:
        """Return one slot per input that the instances' decodes can carry; ids are consecutive across instances."""
        return [slot for instance in self._instances for slot in instance.slots()]

    def check_integrity(self) -> None:
        """Verify that no request is lost. Only meaningful while idle. Raises AssertionError."""
        assert self._open >= set(self._queue), "a queued job is not open"


def _deliver(ended: list[EmbeddingJob]) -> None:
    for job in ended:
        if job.future.done():  # it was cancelled, or another instance has ended it meanwhile
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result([job.results[i] for i in range(len(job.inputs))])


def check_input(prompt: MediaPrompt, info: EmbedderInfo, n_vocab: int, *, media: bool) -> None:
    """Check an input against llama-server's limits, with its messages (server-context.cpp, update_slots). Raises
    `InvalidRequest` or `ContextExceeded`.
    """
    tokens, n = prompt.tokens, len(prompt.tokens)
    if not n:
        raise InvalidRequest("Input content cannot be empty", "input")
    if info.whole and n > info.n_ubatch:
        raise InvalidRequest(
            f"input ({n} tokens) is too large to process. increase the physical batch size "
            f"(current batch size: {info.n_ubatch})",
            "input",
        )
    if info.whole and n > info.n_ctx_seq:
        message = f"input ({n} tokens) is larger than the max context size ({info.n_ctx_seq} tokens). skipping"
        raise ContextExceeded(n, info.n_ctx_seq, message)
    if not info.whole and n >= info.n_ctx_seq:
        # without pooling, n_batch limits the context of a model that has another one for generation
        more = ", and n_batch if the model also generates" if info.pooling is Pooling.NONE else ""
        raise ContextExceeded(n, info.n_ctx_seq, more=more)
    if prompt.spans and not media:
        raise InvalidRequest("this model embeds text only", "input")
    if any(span.n_tokens > info.n_ubatch for span in prompt.spans):
        raise InvalidRequest(f"a medium has more tokens than the physical batch size ({info.n_ubatch})", "input")
    if min(text_of(tokens, prompt.spans), default=0) < 0 or max(tokens) >= n_vocab:
        raise InvalidRequest(f"a token id is outside the vocabulary (0 to {n_vocab - 1})", "input")
