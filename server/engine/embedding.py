"""The embedding engine: a queue of inputs, and instances that take from it, each a native context with its step thread.

Requests take turns, one input at a time, so a request with two thousand inputs does not delay one with a single
input. Inputs are never split.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from server.engine.arrivals import Arrivals
from server.engine.instances import Instances, StepThread, has_failed, notify
from server.engine.media import MediaPrompt, text_of
from server.engine.params import EngineParams
from server.engine.runner_api import EmbedderInfo, EmbeddingRunner, Vectors
from server.engine.snapshots import SlotSnapshot
from server.engine.stats import EngineStats
from server.errors import CONTAINED, ContextExceeded, InternalError, InvalidRequest, LlamapoolError, request_queue_full

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EmbeddingJob:
    """One request: its inputs, none empty. ``done`` belongs to the event loop. Step threads add the ``results``, by
    input, or an ``error``, and then notify the event loop.
    """

    inputs: Sequence[MediaPrompt]
    done: asyncio.Future[list[Vectors]]
    submitted_at: float
    n_taken: int = 0  # inputs taken for a decode
    results: dict[int, Vectors] = field(default_factory=dict)
    error: LlamapoolError | None = None


Piece: TypeAlias = tuple[EmbeddingJob, int]
"""One input of a decode: its job and its index."""


class EmbeddingQueue:
    """Jobs with inputs that no instance has taken yet; the first is served next. Thread-safe."""

    def __init__(self, n_instances: int = 1) -> None:
        self._jobs: deque[EmbeddingJob] = deque()
        self._takers = set(range(n_instances))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[EmbeddingJob]:
        return iter(list(self._jobs))

    def add(self, job: EmbeddingJob) -> None:
        with self._lock:
            self._jobs.append(job)

    def drop(self, job: EmbeddingJob) -> None:
        """Remove the rest of a job, if present."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)

    def close(self, instance: int) -> list[EmbeddingJob]:
        """Stop an instance from taking inputs; remove and return the jobs for which no instance is left."""
        with self._lock:
            self._takers.discard(instance)
            left = [] if self._takers else list(self._jobs)
            if left:
                self._jobs.clear()
        return left

    def take(self, n_seq: int, n_tokens: int) -> list[Piece]:
        """Return the inputs of the next decode: at most `n_seq`, at most `n_tokens` in total, or the first one alone.

        A job whose next input does not fit keeps its turn.
        """
        pieces: list[Piece] = []
        total = 0
        skipped: list[EmbeddingJob] = []
        with self._lock:
            while self._jobs and len(pieces) < n_seq and total < n_tokens:
                job = self._jobs.popleft()
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

    def check_integrity(self) -> None:
        """Verify that every job is queued once and has work left. Raises AssertionError."""
        with self._lock:
            assert len({id(job) for job in self._jobs}) == len(self._jobs), "a job is queued twice"
            for job in self._jobs:
                assert job.n_taken < len(job.inputs), "a job without open inputs is queued"


class EmbeddingInstance(StepThread):
    """Takes inputs from `queue` and decodes them until stopped."""

    def __init__(
        self,
        runner: EmbeddingRunner,
        params: EngineParams,
        queue: EmbeddingQueue,
        number: int,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        arrivals: Arrivals,
    ) -> None:
        super().__init__("llamapool-embed", number, params, clock, arrivals)
        self.runner = runner
        self.running: Sequence[Piece] = ()  # in the current decode
        self._queue = queue
        self._loop = loop
        self._changed: set[EmbeddingJob] = set()  # jobs of which the event loop is not notified yet
        self._n_served = [0] * runner.info.n_seq

    # ---- on the event loop

    def give_up(self, reason: str) -> None:
        self.failure = reason
        jobs = self._all()
        for job in jobs:
            job.error = has_failed(reason)
        self._deliver(jobs)

    def _deliver(self, jobs: Iterable[EmbeddingJob]) -> None:
        for job in jobs:
            if job.done.done():  # it was cancelled or given up, or another input has failed
                continue
            if job.error is not None:
                job.done.set_exception(job.error)
            elif len(job.results) == len(job.inputs):
                self.stats.request_duration.observe(self._clock() - job.submitted_at)
                job.done.set_result([job.results[i] for i in range(len(job.inputs))])

    def _all(self) -> set[EmbeddingJob]:
        """Return the jobs that only it computes; it takes no more."""
        return {job for job, _ in self.running} | set(self._queue.close(self.number))

    def slots(self) -> list[SlotSnapshot]:
        """Return one slot per input that a decode can carry."""
        running, info = self.running, self.runner.info
        return [
            SlotSnapshot(
                self.number * info.n_seq + i,
                info.n_ctx_seq,
                is_processing=i < len(running),
                n_requests=self._n_served[i],
                n_tokens=len(running[i][0].inputs[running[i][1]]) if i < len(running) else 0,
            )
            for i in range(info.n_seq)
        ]

    # ---- the step thread

    def _free(self) -> None:
        self.runner.close()

    def _iterate(self) -> None:
        self._woken.clear()
        info = self.runner.info
        if self._arrivals.expected and sum(len(job.inputs) - job.n_taken for job in self._queue) < info.n_seq:
            self._gather()
        self.running = self._queue.take(info.n_seq, info.n_pack)
        if self.running:
            self._step(self.running)
            self.running = ()
            self._post()
        elif not self._is_wanted:
            self._rest()

    def _step(self, pieces: Sequence[Piece]) -> None:
        started = self._clock()
        for slot, (job, index) in enumerate(pieces):
            self._n_served[slot] += 1
            if index == 0:
                self.stats.queue_time.observe(started - job.submitted_at)
        self._compute(pieces)
        self.last_s = self._clock() - started
        self.stats.prompt_seconds += self.last_s
        if self.params.check_integrity:
            self._queue.check_integrity()

    def _compute(self, pieces: Sequence[Piece]) -> None:
        """Decode together; if the library rejects that, one by one, so that only the faulty job fails."""
        try:
            found = self._embed([job.inputs[index] for job, index in pieces])
        except CONTAINED as error:
            log.error(
                "a decode of %d inputs failed, each is tried by itself; a smaller n_batch takes less memory: %r",
                len(pieces),
                error,
            )
            if len(pieces) == 1:
                own = error if isinstance(error, LlamapoolError) else InternalError("there is no memory for this input")
                self._fail(pieces[0][0], own)
                return
            for piece in pieces:
                if piece[0].error is None:
                    self._compute([piece])
            return
        for (job, index), vectors in zip(pieces, found, strict=True):
            if np.isfinite(vectors).all():
                job.results[index] = vectors
                self._changed.add(job)
            else:
                self._fail(job, InternalError("the model computed a vector with values that are not numbers"))

    def _embed(self, inputs: Sequence[MediaPrompt]) -> list[Vectors]:
        text = [one.tokens for one in inputs if not one.spans]
        vectors = iter(self.runner.embed(text) if text else ())
        found = [self.runner.embed_media(one.tokens, one.spans) if one.spans else next(vectors) for one in inputs]
        sizes = [len(one) for one in inputs]
        self.stats.n_decode += 1
        self.stats.n_busy_slots += len(inputs)
        self.stats.prompt_tokens += sum(sizes)
        self.stats.n_tokens_max = max(self.stats.n_tokens_max, *sizes)
        return found

    def _fail(self, job: EmbeddingJob, error: LlamapoolError) -> None:
        self._queue.drop(job)
        job.error = error
        self._changed.add(job)

    def _fail_all(self, error: LlamapoolError) -> None:
        """Fail the jobs of its decode; others wait for the next."""
        self._end({job for job, _ in self.running} or self._queue, error)

    def _end_all(self, error: LlamapoolError) -> None:
        self._end(self._all(), error)

    def _end(self, jobs: Iterable[EmbeddingJob], error: LlamapoolError) -> None:
        for job in jobs:
            self._fail(job, error)
        self.running = ()
        self._post()

    def _post(self) -> None:
        """Deliver the results with one call into the event loop."""
        if self._changed:
            jobs, self._changed = self._changed, set()
            notify(self._loop, self._deliver, jobs)


class EmbeddingEngine(Instances[EmbeddingInstance]):
    """Computes embeddings. A request is a list of inputs; requests of all clients share decodes."""

    def __init__(
        self,
        runners: Sequence[EmbeddingRunner],
        params: EngineParams,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(params, runners[0].info.n_seq, loop, clock)
        self.info = runners[0].info
        self.takes_media = runners[0].takes_media
        self.vocab = runners[0].vocab
        self.n_ctx_seq = self.info.n_ctx_seq
        self._queue = EmbeddingQueue(len(runners))
        self._open: set[EmbeddingJob] = set()
        self._start(
            [
                EmbeddingInstance(runner, params, self._queue, i, loop, clock, self._arrivals)
                for i, runner in enumerate(runners)
            ]
        )

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request; the future has the vectors of each input, in order. Cancelling it frees its place.

        Raises InvalidRequest, ContextExceeded, QueueFull, ShuttingDown or Unavailable; nothing was queued then.
        """
        self._check_open()
        if not inputs:
            raise InvalidRequest('"input" must not be empty', "input")
        prompts = [one if isinstance(one, MediaPrompt) else MediaPrompt(list(one)) for one in inputs]
        for prompt in prompts:
            check_input(prompt, self.info, self.vocab.n_tokens, media=self.takes_media)
        if self.n_load >= len(self._instances) * self.params.max_queue + self.n_slots:
            raise request_queue_full(self.n_load - self.n_slots, self._retry_after_s())
        job = EmbeddingJob(prompts, self._loop.create_future(), self._clock())
        job.done.add_done_callback(lambda _: self._left(job))
        self._idle.clear()
        self._open.add(job)
        self._queue.add(job)
        self._arrivals.expect()
        return job.done

    def _left(self, job: EmbeddingJob) -> None:
        self._queue.drop(job)
        self._open.remove(job)
        self._one_is_idle()

    @property
    def n_load(self) -> int:
        """Jobs that wait or run; exact on the event loop."""
        return len(self._open)

    @property
    def stats(self) -> EngineStats:
        total = super().stats
        running = self._open & {job for instance in self._instances for job, _ in instance.running}
        total.n_processing, total.n_deferred = len(running), len(self._open - running)
        return total

    def slots(self) -> list[SlotSnapshot]:
        """Return one slot per input that the instances' decodes can carry; ids run on across instances."""
        return [slot for instance in self._instances for slot in instance.slots()]

    def check_integrity(self) -> None:
        """Verify that no request is lost; only meaningful while idle."""
        self._queue.check_integrity()
        assert self._open.issuperset(self._queue), "a job is queued that nobody waits for"


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
        raise ContextExceeded(n, info.n_ctx_seq)
    if prompt.spans and not media:
        raise InvalidRequest("this model embeds text only", "input")
    if any(span.n_tokens > info.n_ubatch for span in prompt.spans):
        raise InvalidRequest(f"a medium has more tokens than the physical batch size ({info.n_ubatch})", "input")
    if min(text_of(tokens, prompt.spans), default=0) < 0 or max(tokens) >= n_vocab:
        raise InvalidRequest(f"a token id is outside the vocabulary (0 to {n_vocab - 1})", "input")
