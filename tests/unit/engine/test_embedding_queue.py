"""Which inputs share a decode, and whose turn it is."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from server.engine.embedding import EmbeddingJob, EmbeddingQueue
from server.engine.media import MediaPrompt


def job(*sizes: int) -> EmbeddingJob:
    loop = asyncio.new_event_loop()
    try:
        return EmbeddingJob([MediaPrompt([0] * size) for size in sizes], loop.create_future(), 0.0)
    finally:
        loop.close()


def queue_of(*jobs: EmbeddingJob) -> EmbeddingQueue:
    queue = EmbeddingQueue()
    for each in jobs:
        queue.add(each)
    return queue


def sizes(queue: EmbeddingQueue, n_seq: int = 100, n_tokens: int = 100) -> list[int]:
    return [len(piece.input) for piece in queue.take(n_seq, n_tokens)]


def test_a_small_job_does_not_wait_for_all_of_a_large_one() -> None:
    queue = queue_of(job(*[50] * 20), job(50))
    assert sizes(queue) == [50, 50]
    assert len(list(queue)) == 1


@given(
    st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=8), max_size=8),
    st.integers(1, 6),
    st.integers(1, 120),
)
def test_every_input_is_taken_once_within_the_limits(all_sizes: list[list[int]], n_seq: int, n_tokens: int) -> None:
    jobs = [job(*each) for each in all_sizes]
    queue = queue_of(*jobs)
    taken = []
    while pieces := queue.take(n_seq, n_tokens):
        queue.check_integrity()
        assert len(pieces) <= n_seq
        assert len(pieces) == 1 or sum(len(piece.input) for piece in pieces) <= n_tokens
        taken += [(jobs.index(piece.job), piece.index) for piece in pieces]
    assert sorted(taken) == [(j, i) for j, each in enumerate(all_sizes) for i in range(len(each))]
