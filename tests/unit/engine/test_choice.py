"""Which of several instances a request goes to."""

import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

from server.engine.engine import Engine
from server.engine.queue import preferred_instance
from server.engine.runner_api import BatchEntry
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, alone, ask, engine_over, request, run, sequence


def asked(n: int, **options: Any) -> Ticket:
    return sequence(list(range(n)), **options).ticket


def running(slot: Slot, n: int, *, done: int, instance: int = 0) -> Ticket:
    taken = asked(n)
    taken.instance = instance
    slot.sequence = Sequence(taken, 0, phase=Phase.PREFILL if done < n else Phase.DECODE, slot=slot)
    slot.tokens = [-1] * done
    return taken


def test_a_large_prefix_outweighs_running_requests_and_a_small_one_does_not() -> None:
    slots = {i: [Slot(id=j) for j in range(8)] for i in range(2)}
    busy = [running(slot, 50, done=50) for slot in slots[0][:5]]
    slots[0][5].tokens = list(range(1000))
    assert preferred_instance(asked(1200), busy, slots) == 0
    assert preferred_instance(asked(1200, cache_prompt=False), busy, slots) == 1
    slots[0][5].tokens = list(range(64))
    assert preferred_instance(asked(1200), busy, slots) == 1


def two(**options: int) -> list[FakeRunner]:
    return [FakeRunner(n_seq=4, n_ctx_seq=2000, n_batch=512, steps=threading.Semaphore(0)) for _ in range(2)]


async def served_by(engine: Engine, runners: list[FakeRunner], prompts: list[str]) -> list[int]:
    """The instances that took the requests, submitted together."""
    replies = [ask(engine, request(prompt)) for prompt in prompts]
    for runner in runners:
        runner.steps.release(10_000)  # type: ignore[union-attr]
    for reply in replies:
        await reply.ended.wait()
    return [reply.ticket.instance for reply in replies]


async def test_twins_that_arrive_together_go_to_the_same_instance_and_strangers_to_the_other() -> None:
    runners = two()
    async with engine_over(*runners) as engine:
        twin = "the same long beginning " * 40
        owners = await served_by(engine, runners, [twin + "a", twin + "b", "somebody else, who is as long" * 30])
    assert owners == [0, 0, 1]


async def test_a_conversation_comes_back_to_its_instance_though_another_is_idle() -> None:
    runners = two()
    async with engine_over(*runners) as engine:
        await served_by(engine, runners, ["x" * 20, "a conversation " * 60])
        owners = await served_by(engine, runners, ["y" * 20, "z" * 21, "a conversation " * 60 + "goes on"])
    assert owners[2] == 1


BEGINNING = "a beginning that several have " * 5
FOR_EVER = 90_000


def takes_time(_: Seq[BatchEntry]) -> None:
    """As decoding does, without the GIL: else no stream lasts, and the step threads leave the event loop no time."""
    time.sleep(0.002)


def runner(n_seq: int = 1, **options: Any) -> FakeRunner:
    return FakeRunner(n_seq=n_seq, **{"n_ctx_seq": 100_000, "n_batch": 512, **options})


async def begun(engine: Engine, prompt: str, **options: Any) -> Reply:
    """A request that goes on for ever, once it has its first text."""
    reply = ask(engine, request(prompt, max_tokens=FOR_EVER, **options))
    await reply.step()
    return reply


def home(engine: Engine, ticket: Ticket) -> list[int]:
    """The instances where it waits or runs."""
    return [t.instance for t in engine._queue.open.values() if t is ticket]


async def test_a_slot_that_a_request_names_is_of_its_instance() -> None:
    async with engine_over(FakeRunner(n_seq=2), FakeRunner(n_seq=2)) as engine:
        (reply,) = await run(engine, request("bound", id_slot=3))
    assert reply.finished[0].id_slot == 3


async def test_a_full_instance_is_passed_over_although_it_has_the_prefix() -> None:
    async with engine_over(runner(on_decode=takes_time), runner(on_decode=takes_time)) as engine:
        long = await begun(engine, BEGINNING + "for long")
        (reply,) = await run(engine, request(BEGINNING + "for short"))
        assert reply.finished[0].id_slot == 1
        assert reply.text == alone(request(BEGINNING + "for short"))
        assert home(engine, long.ticket) == [0]
        engine.cancel(long.ticket)
        await engine.wait_idle()


async def test_requests_with_one_cache_key_prefer_one_instance_unless_the_prefix_says_otherwise() -> None:
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
        (home_,) = await instances(engine, BEGINNING)
        assert await instances(engine, *(BEGINNING + key for key in "abcdef"), cache_key="any") == {home_}
        busy = [await begun(engine, f"busy {n}", cache_key="k") for n in range(6)]
        assert len({home(engine, one.ticket)[0] for one in busy}) > 1
        for one in busy:
            engine.cancel(one.ticket)
