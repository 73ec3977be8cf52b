"""The choice of an instance for a request: by cached prefix, load, `id_slot` and cache key. Uses fake runners."""

import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

from server.engine.engine import Engine
from server.engine.queue import preferred_instance
from server.engine.runner_api import BatchEntry
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, expected_text, request, run, sequence, submit

PREFIX = "a prefix that several prompts have " * 5
ENDLESS = 90_000


def ticket(n_prompt: int, **options: Any) -> Ticket:
    return sequence(list(range(n_prompt)), **options).ticket


def running(slot: Slot, n_prompt: int) -> Ticket:
    """Return the ticket of a request that decodes in `slot` of instance 0."""
    taken = ticket(n_prompt)
    slot.sequence = Sequence(taken, 0, phase=Phase.DECODE, slot=slot)
    slot.tokens = [-1] * n_prompt  # a prefix of no prompt
    return taken


def test_long_cached_prefix_outweighs_load_and_short_one_does_not() -> None:
    slots = {i: [Slot(id=j) for j in range(8)] for i in range(2)}
    busy = [running(slot, 50) for slot in slots[0][:5]]
    slots[0][5].tokens = list(range(1000))
    assert preferred_instance(ticket(1200), busy, slots) == 0
    assert preferred_instance(ticket(1200, cache_prompt=False), busy, slots) == 1
    slots[0][5].tokens = list(range(64))
    assert preferred_instance(ticket(1200), busy, slots) == 1


def stepped_runners() -> list[FakeRunner]:
    """Return two runners that decode once `instances_of` releases them."""
    return [FakeRunner(n_seq=4, n_ctx_seq=2000, n_batch=512, steps=threading.Semaphore(0)) for _ in range(2)]


async def instances_of(engine: Engine, runners: list[FakeRunner], prompts: list[str]) -> list[int]:
    """Submit the prompts together, and return the instance that took each."""
    replies = [submit(engine, request(prompt)) for prompt in prompts]
    for each in runners:
        each.steps.release(10_000)  # type: ignore[union-attr]
    for reply in replies:
        await reply.ended.wait()
    return [reply.ticket.instance for reply in replies]


async def test_simultaneous_requests_with_one_prefix_share_an_instance() -> None:
    runners = stepped_runners()
    async with engine_over(*runners) as engine:
        prefix = "the same long prefix " * 40
        taken = await instances_of(engine, runners, [prefix + "a", prefix + "b", "an unrelated prompt, as long" * 30])
    assert taken == [0, 0, 1]


async def test_next_turn_returns_to_the_instance_of_its_conversation_although_another_is_idle() -> None:
    runners = stepped_runners()
    async with engine_over(*runners) as engine:
        await instances_of(engine, runners, ["x" * 20, "a conversation " * 60])
        taken = await instances_of(engine, runners, ["y" * 20, "z" * 21, "a conversation " * 60 + "goes on"])
    assert taken[2] == 1


def sleep_in_decode(_: Seq[BatchEntry]) -> None:
    """Release the GIL as a real decode does; otherwise the step threads leave the event loop no time."""
    time.sleep(0.002)


def runner(n_seq: int = 1, **options: Any) -> FakeRunner:
    return FakeRunner(n_seq=n_seq, **{"n_ctx_seq": 100_000, "n_batch": 512, **options})


async def start_endless(engine: Engine, prompt: str, **options: Any) -> Reply:
    """Start a request that does not end by itself; return after its first text."""
    reply = submit(engine, request(prompt, max_tokens=ENDLESS, **options))
    await reply.next_step()
    return reply


async def test_id_slot_selects_the_instance_that_has_the_slot() -> None:
    async with engine_over(FakeRunner(n_seq=2), FakeRunner(n_seq=2)) as engine:
        (reply,) = await run(engine, request("bound", id_slot=3))
    assert reply.finished[0].id_slot == 3


async def test_request_goes_to_another_instance_if_the_one_with_its_prefix_is_full() -> None:
    async with engine_over(runner(on_decode=sleep_in_decode), runner(on_decode=sleep_in_decode)) as engine:
        endless = await start_endless(engine, PREFIX + "endless")
        (reply,) = await run(engine, request(PREFIX + "short"))
        assert reply.finished[0].id_slot == 1
        assert reply.text == expected_text(request(PREFIX + "short"))
        assert endless.ticket.instance == 0
        engine.cancel(endless.ticket)
        await engine.wait_idle()


async def test_cache_key_selects_one_instance_unless_prefix_or_load_outweighs_it() -> None:
    async def instances(engine: Engine, *prompts: str, **fields: Any) -> set[int]:
        found = set()
        for prompt in prompts:
            (reply,) = await run(engine, request(prompt, **fields))
            found.add(reply.finished[0].id_slot // 4)
            await engine.wait_idle()  # otherwise the slot of the last reply may still count as busy
        return found

    async with engine_over(*(runner(n_seq=4) for _ in range(4))) as engine:
        by_key = [
            await instances(engine, *(f"{key}{n} unlike others" for n in "xyz"), cache_key=f"key {key}")
            for key in range(8)
        ]
        assert {len(found) for found in by_key} == {1}
        assert len({instance for found in by_key for instance in found}) > 1
        (with_prefix,) = await instances(engine, PREFIX)
        assert await instances(engine, *(PREFIX + key for key in "abcdef"), cache_key="any") == {with_prefix}
        busy = [await start_endless(engine, f"busy {n}", cache_key="k") for n in range(6)]
        assert len({one.ticket.instance for one in busy}) > 1
        for one in busy:
            engine.cancel(one.ticket)
