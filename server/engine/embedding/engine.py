"""Several embedding instances of one model behind one door; everything here runs on the event loop."""

import asyncio
import time
from collections.abc import Callable, Sequence

from server.engine.embedding.instance import EmbeddingInstance, EmbeddingJob, EmbeddingQueue
from server.engine.embedding.vectors import EmbedderInfo, EmbeddingRunner, Vectors
from server.engine.instances import Instances
from server.engine.media import MediaPrompt, text_of
from server.engine.params import EngineParams
from server.engine.stats import EngineStats
from server.engine.step.published import SlotSnapshot
from server.errors import ContextExceeded, InvalidRequest, QueueFull


class EmbeddingEngine(Instances[EmbeddingInstance]):
    """Computes vectors. A request is its inputs, each a list of tokens; the requests of all clients share decodes."""

    def __init__(
        self,
        runners: Sequence[EmbeddingRunner],
        params: EngineParams,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(params, runners[0].info.n_seq, clock)
        self.info = runners[0].info
        self.takes_media = runners[0].takes_media
        self.vocab = runners[0].vocab
        self.n_ctx_seq = self.info.n_ctx_seq
        self._loop = loop
        self._queue = EmbeddingQueue(len(runners))
        self._open: set[EmbeddingJob] = set()
        self._start(
            [
                EmbeddingInstance(runner, params, self._queue, i, loop, clock, lambda: self._n_preparing)
                for i, runner in enumerate(runners)
            ]
        )

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request; the future has the vectors of each input, in order. Cancelling it frees its place.

        Raises InvalidRequest, ContextExceeded, QueueFull, ShuttingDown or Unavailable; then nothing was queued.
        """
        self._check_open()
        if not inputs:
            raise InvalidRequest('"input" must not be empty', "input")
        prompts = [one if isinstance(one, MediaPrompt) else MediaPrompt(list(one)) for one in inputs]
        for prompt in prompts:
            check_input(prompt, self.info, self.vocab.n_tokens, media=self.takes_media)
        if self.n_load >= len(self._instances) * self.params.max_queue + self.n_slots:
            raise QueueFull(self.n_load - self.n_slots, self._retry_after_s())
        job = EmbeddingJob(prompts, self._loop.create_future(), self._clock())
        job.done.add_done_callback(lambda _: self._left(job))
        self._idle.clear()
        self._open.add(job)
        self._queue.add(job)
        for instance in self._instances:
            instance.wake()
        return job.done

    def _left(self, job: EmbeddingJob) -> None:
        """It is done, has failed or was cancelled."""
        self._queue.drop(job)
        self._open.remove(job)
        self._one_is_idle()

    @property
    def n_load(self) -> int:
        """Jobs that wait or run; exact on the event loop."""
        return len(self._open)

    @property
    def stats(self) -> EngineStats:
        """Totals over the instances; a copy."""
        total = super().stats
        running = {piece.job for instance in self._instances for piece in instance.running}
        total.n_processing, total.n_deferred = len(running), len(self._open - running)
        return total

    def slots(self) -> list[SlotSnapshot]:
        """One for each input that the instances' decodes can carry; ids run on across instances."""
        return [slot for instance in self._instances for slot in instance.slots()]

    def check_integrity(self) -> None:
        """Prove that no request is lost; only meaningful while idle."""
        self._queue.check_integrity()
        assert self._open.issuperset(self._queue.jobs), "a job is queued that nobody waits for"


def check_input(prompt: MediaPrompt, info: EmbedderInfo, n_vocab: int, *, media: bool) -> None:
    """llama-server's limits in its words (tools/server/server-context.cpp, update_slots). Raises `InvalidRequest`,
    `ContextExceeded`."""
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
