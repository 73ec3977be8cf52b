"""Which inputs the next decode carries. Pure: no threads, no clock, no I/O.

Requests take turns, one input at a time, so that one with two thousand inputs does not hold up one with a single
input. Whole inputs only: what is computed at once is computed for good.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.engine.embedding.vectors import Vectors
from server.engine.media import Spans


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
