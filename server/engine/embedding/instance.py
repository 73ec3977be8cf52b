"""One native context that embeds, and the thread that owns it: nothing else calls into the runner; and its queue, which
says what the next decode carries.

Requests take turns, one input at a time, so that one with two thousand inputs does not hold up one with a single input.
Whole inputs only: what is computed at once is computed for good.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.engine.embedding.vectors import EmbeddingRunner, Vectors
from server.engine.instances import StepThread, bind, has_failed
from server.engine.media import Spans
from server.engine.params import EngineParams
from server.engine.step.published import SlotSnapshot
from server.errors import CONTAINED, InternalError, LlamapoolError

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class EmbeddingJob:
    """One request: its inputs as tokens, none empty, and what has come of them.

    ``done`` belongs to the event loop; its cancellation sets ``cancelled``, which the step thread looks at.
    """

    inputs: Sequence[Sequence[int]]
    media: Sequence[Spans]  # of each input
    done: asyncio.Future[list[Vectors]]
    submitted_at: float
    n_taken: int = 0  # inputs that are in a decode, or were
    results: list[Vectors | None] = field(default_factory=list)
    n_open: int = 0  # inputs without a result
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.n_open = len(self.inputs)
        self.results = [None] * self.n_open


@dataclass(frozen=True, slots=True)
class Piece:
    """One input of a decode."""

    job: EmbeddingJob
    index: int

    @property
    def tokens(self) -> Sequence[int]:
        """The input."""
        return self.job.inputs[self.index]

    @property
    def media(self) -> Spans:
        """What its negative tokens stand for."""
        return self.job.media[self.index]


class EmbeddingQueue:
    """The jobs with inputs that nobody has taken yet; the next to be served is the first."""

    def __init__(self) -> None:
        self.jobs: deque[EmbeddingJob] = deque()

    def add(self, job: EmbeddingJob) -> None:
        """Put a new job behind the others."""
        self.jobs.append(job)

    def drop(self, job: EmbeddingJob) -> None:
        """Forget what is left of a job; nothing if it is gone."""
        if job in self.jobs:
            self.jobs.remove(job)

    def take(self, n_seq: int, n_tokens: int) -> list[Piece]:
        """The inputs of the next decode: at most `n_seq`, of at most `n_tokens` in all, or the first one alone.

        A job whose input does not fit any more keeps its turn: it comes before those that were served.
        """
        pieces: list[Piece] = []
        total = 0
        skipped: list[EmbeddingJob] = []
        while self.jobs and len(pieces) < n_seq and total < n_tokens:
            job = self.jobs.popleft()
            size = len(job.inputs[job.n_taken])
            if pieces and total + size > n_tokens:
                skipped.append(job)
                continue
            pieces.append(Piece(job, job.n_taken))
            total += size
            job.n_taken += 1
            if job.n_taken < len(job.inputs):
                self.jobs.append(job)
        self.jobs.extendleft(reversed(skipped))
        return pieces

    def check_integrity(self) -> None:
        """Prove that every job is queued once and has something left to do; raises AssertionError."""
        assert len({id(job) for job in self.jobs}) == len(self.jobs), "a job is queued twice"
        for job in self.jobs:
            assert job.n_taken < len(job.inputs), "a job without open inputs is queued"
            assert job.n_open == sum(result is None for result in job.results), "a job's results are miscounted"


Ended = tuple[EmbeddingJob, LlamapoolError | None]


class EmbeddingInstance(StepThread):
    """Takes jobs from the event loop and decodes them until it is stopped.

    ``n_load`` counts the jobs that wait or run; it changes on the event loop only, and so is exact there.
    """

    def __init__(
        self,
        runner: EmbeddingRunner,
        params: EngineParams,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        *,
        preparing: Callable[[], int],
        on_idle: Callable[[], None],
        cpus: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__("llamapool-embed", threading.Event())
        self.runner = runner
        self.queue = EmbeddingQueue()
        self.n_load = 0
        self._params = params
        self._loop = loop
        self._clock = clock
        self._preparing = preparing
        self._cpus = cpus
        self._on_idle = on_idle
        self._inbox: deque[EmbeddingJob] = deque()
        self._open: dict[int, EmbeddingJob] = {}
        self._ended: list[Ended] = []
        self._running: tuple[int, ...] = ()  # tokens of each input in the decode under way
        self._n_served = [0] * runner.info.n_seq
        self._given_up = False

    # ---- on the event loop

    def submit(self, job: EmbeddingJob) -> None:
        """Hand over a checked job. Cancelling ``job.done`` takes it back."""
        self.n_load += 1
        job.done.add_done_callback(lambda done: self._cancel(job) if done.cancelled() else None)
        self._inbox.append(job)
        self._woken.set()

    def _cancel(self, job: EmbeddingJob) -> None:
        job.cancelled = True
        self._woken.set()

    def give_up(self, reason: str) -> None:
        """As `StepThread.give_up`."""
        self.failure, self._given_up, self.n_load = reason, True, 0
        error = has_failed(reason)
        for job in [*self._open.values(), *self._inbox]:
            if not job.done.done():
                job.done.set_exception(error)
        self._on_idle()

    def slots(self, first_id: int) -> list[SlotSnapshot]:
        """One slot for each input that a decode can carry."""
        running, info = self._running, self.runner.info
        return [
            SlotSnapshot(
                first_id + i,
                info.n_ctx_seq,
                is_processing=i < len(running),
                n_requests=self._n_served[i],
                n_tokens=running[i] if i < len(running) else 0,
            )
            for i in range(info.n_seq)
        ]

    def _deliver(self, ended: list[Ended]) -> None:
        if self._given_up:
            return
        for job, error in ended:
            self.n_load -= 1
            if job.done.done():
                continue
            if error is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result([result for result in job.results if result is not None])
        if not self.n_load:
            self._on_idle()

    # ---- the step thread

    def _free(self) -> None:
        self.runner.close()

    def _serve(self) -> None:
        bind(self._cpus, self._params.prio)
        while not self._stopping and not self.failure:
            try:
                self.pulse += 1
                self._woken.clear()
                self._receive()
                if not self._step() and not self._inbox and not self._stopping:
                    self._post()
                    self._rest()
            except Exception:
                log.exception(
                    "an embedding step failed; every request of this instance ends. A fault: report what follows"
                )
                self._end_all(InternalError("the engine failed; see the server's log"))
            self._post()

    def _receive(self) -> None:
        """Take new jobs in, waiting a moment for those that are known to come, and drop cancelled ones."""
        n_waiting = sum(len(job.inputs) - job.n_taken for job in self.queue.jobs)
        if self._preparing() and self._params.gather_ms > 0 and n_waiting < self.runner.info.n_seq:
            deadline = self._clock() + self._params.gather_ms / 1e3
            while self._preparing() and not self._stopping and (left := deadline - self._clock()) > 0:
                self._woken.wait(left)
                self._woken.clear()
        while self._inbox:
            job = self._inbox.popleft()
            self._open[id(job)] = job
            self.queue.add(job)
        for job in [job for job in self._open.values() if job.cancelled]:
            self._end(job)

    def _step(self) -> bool:
        """One decode. False when there is nothing to do."""
        info = self.runner.info
        pieces = self.queue.take(info.n_seq, info.n_pack)
        self._count(pieces)
        if not pieces:
            return False
        started = self._clock()
        for piece in pieces:
            if piece.index == 0:
                self.stats.queue_time.observe(started - piece.job.submitted_at)
        self._compute(pieces)
        self.stats.prompt_seconds += self._clock() - started
        self._count([])
        if self._params.check_integrity:
            self.queue.check_integrity()
        return True

    def _compute(self, pieces: list[Piece]) -> None:
        """Decode together; when the library refuses that, one by one, so that only the job at fault fails."""
        try:
            found = self._embed(pieces)
        except CONTAINED as error:
            log.error(
                "a decode of %d inputs failed, each is tried by itself; a smaller n_batch takes less memory: %r",
                len(pieces),
                error,
            )
            if len(pieces) == 1:
                own = error if isinstance(error, LlamapoolError) else InternalError("there is no memory for this input")
                self._end(pieces[0].job, own)
                return
            for piece in pieces:
                if id(piece.job) in self._open:
                    self._compute([piece])
            return
        for piece, vectors in zip(pieces, found, strict=True):
            self._keep(piece, vectors)

    def _embed(self, pieces: list[Piece]) -> list[Vectors]:
        text = [piece for piece in pieces if not piece.media]
        vectors = iter(self.runner.embed([piece.tokens for piece in text]) if text else ())
        found = [
            self.runner.embed_media(piece.tokens, piece.media) if piece.media else next(vectors) for piece in pieces
        ]
        sizes = [len(piece.tokens) for piece in pieces]
        self.stats.n_decode += 1
        self.stats.n_busy_slots += len(pieces)
        self.stats.prompt_tokens += sum(sizes)
        self.stats.n_tokens_max = max(self.stats.n_tokens_max, *sizes)
        return found

    def _keep(self, piece: Piece, vectors: Vectors) -> None:
        job = piece.job
        if id(job) not in self._open:  # another input of it has failed in this decode
            return
        if not np.isfinite(vectors).all():
            self._end(job, InternalError("the model computed a vector with values that are not numbers"))
            return
        job.results[piece.index] = vectors
        job.n_open -= 1
        if not job.n_open:
            self.stats.request_duration.observe(self._clock() - job.submitted_at)
            self._end(job)

    def _end(self, job: EmbeddingJob, error: LlamapoolError | None = None) -> None:
        """Nothing of `job` is left here; said once."""
        if self._open.pop(id(job), None) is not None:
            self.queue.drop(job)
            self._ended.append((job, error))

    def _end_all(self, error: LlamapoolError) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            self._open[id(job)] = job
        for job in list(self._open.values()):
            self._end(job, error)
        self._count([])
        self._post()

    def _post(self) -> None:
        """One call into the event loop for all that ended in this step."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        try:
            self._loop.call_soon_threadsafe(self._deliver, ended)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            log.debug("the event loop is closed; %d requests get no vectors", len(ended))

    def _count(self, pieces: list[Piece]) -> None:
        self._running = tuple(len(piece.tokens) for piece in pieces)
        for i in range(len(pieces)):
            self._n_served[i] += 1
        running = {id(piece.job) for piece in pieces}
        self.stats.n_processing = len(running)
        self.stats.n_deferred = len(self._open.keys() - running)
