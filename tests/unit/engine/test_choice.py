"""Which of several instances a request goes to."""

import threading

import pytest

from server.engine.engine import Engine
from server.engine.lora import NO_ADAPTERS, AdapterSet
from server.engine.request import Request
from server.engine.routing import (
    MAX_CANDIDATES,
    STREAM_TOKENS,
    estimated_cost,
    expected_prefix,
    held_tokens,
)
from server.engine.sequence import Phase, Sequence, Slot, Ticket
from server.engine.stats import EngineStats
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.events import events_of


def ticket(n: int, *, n_expected: int = 0, **options: bool) -> Ticket:
    return Ticket(Request(id="r", prompt=list(range(n)), **options), lambda events: None, 0.0, n_to_compute=n_expected)  # type: ignore[arg-type]


def running(slot: Slot, n: int, *, phase: Phase, done: int) -> Ticket:
    taken = ticket(n)
    sequence = Sequence(taken, 0, [-1 - i for i in range(n)], phase=phase)
    slot.sequence, sequence.slot, slot.tokens = sequence, slot, sequence.target[:done]
    return taken


def wait(
    asked: Ticket, slots: list[Slot], open_: list[Ticket], known: int = 0, stats: EngineStats | None = None
) -> float:
    return estimated_cost(asked, known, slots, open_, held_tokens([stats or EngineStats()]))[1]


def test_an_idle_instance_has_the_prompt_itself_to_compute() -> None:
    assert wait(ticket(100), [Slot(0)], []) == 100


def test_what_a_slot_holds_or_was_seen_before_needs_no_computing() -> None:
    assert wait(ticket(100), [Slot(0, tokens=list(range(60)))], []) == 40
    assert wait(ticket(100), [Slot(0, tokens=list(range(60)))], [], known=64) == 36
    assert wait(ticket(100, cache_prompt=False), [Slot(0, tokens=list(range(60)))], [], known=64) == 100


def test_prompts_that_are_being_computed_or_wait_come_first() -> None:
    slots = [Slot(0), Slot(1), Slot(2)]
    half = running(slots[0], 1000, phase=Phase.PREFILL, done=400)
    assert wait(ticket(100), slots, [half]) == 100 + 600 + STREAM_TOKENS
    assert wait(ticket(100), slots, [half, ticket(500, n_expected=30)]) == 100 + 600 + 30 + 2 * STREAM_TOKENS


def test_a_large_prefix_outweighs_a_few_streams_and_a_small_one_does_not() -> None:
    busy, idle = [Slot(i) for i in range(8)], [Slot(i) for i in range(8)]
    streams = [running(slot, 50, phase=Phase.DECODE, done=50) for slot in busy[:5]]
    assert wait(ticket(12_000), busy, streams, known=10_000) < wait(ticket(12_000), idle, [])
    assert wait(ticket(12_000), busy, streams, known=64) > wait(ticket(12_000), idle, [])


def test_a_full_instance_costs_the_time_until_a_slot_is_free() -> None:
    stats = EngineStats(prompt_tokens=1000, prompt_seconds=1.0)
    for _ in range(4):
        stats.request_duration.observe(3.0)
        stats.queue_time.observe(1.0)
    slots = [Slot(0), Slot(1)]
    streams = [running(slot, 50, phase=Phase.DECODE, done=50) for slot in slots]
    assert wait(ticket(100), slots, streams, stats=stats) == 100 + 2 * STREAM_TOKENS + 0.5 * 2000


def test_what_comes_with_others_is_known() -> None:
    prompt = list(range(50))

    def asked(tokens: list[int], adapter_set: AdapterSet = NO_ADAPTERS) -> Ticket:
        return Ticket(Request(id="r", prompt=tokens), lambda events: None, 0.0, adapter_set=adapter_set)

    here, there = asked(prompt), asked([*prompt[:20], *[7] * 20])
    assert expected_prefix(asked(prompt), [there, here]) == 50
    assert expected_prefix(asked(prompt), [there]) == 20
    assert expected_prefix(asked([9, *prompt]), [here, there]) == 0
    assert expected_prefix(asked(prompt, AdapterSet(((0, 1.0),), 0)), [here]) == 0
    assert expected_prefix(asked(prompt), [here, *[there] * MAX_CANDIDATES]) == 20, "the last ones are looked at"


def still() -> float:
    """A clock that stands still: nobody waits so long for his instance that another one takes him (`SETTLED_S`)."""
    return 1.0


def two(**options: int) -> list[FakeRunner]:
    return [FakeRunner(n_seq=4, n_ctx_seq=2000, n_batch=512, steps=threading.Semaphore(0)) for _ in range(2)]


async def served_by(engine: Engine, runners: list[FakeRunner], prompts: list[str]) -> list[int]:
    """The instances that took the requests, submitted together."""
    streams = [events_of(engine, request(prompt)) for prompt in prompts]
    for runner in runners:
        runner.steps.release(10_000)  # type: ignore[union-attr]
    for stream in streams:
        async for _ in stream:
            pass
    return [stream.ticket.instance for stream in streams if stream.ticket is not None]


async def test_twins_that_arrive_together_go_to_the_same_instance_and_strangers_to_the_other() -> None:
    runners = two()
    async with engine_over(*runners, clock=still) as engine:
        twin = "the same long beginning " * 40
        owners = await served_by(engine, runners, [twin + "a", twin + "b", "somebody else, who is as long" * 30])
    assert owners == [0, 0, 1]


async def test_a_conversation_comes_back_to_its_instance_though_another_is_idle() -> None:
    runners = two()
    async with engine_over(*runners, clock=still) as engine:
        await served_by(engine, runners, ["x" * 20, "a conversation " * 60])
        owners = await served_by(engine, runners, ["y" * 20, "z" * 21, "a conversation " * 60 + "goes on"])
    assert owners[2] == 1


async def test_a_full_instance_is_passed_over_for_one_that_has_room() -> None:
    runners = [FakeRunner(n_seq=1, n_ctx_seq=2000, n_batch=512, steps=threading.Semaphore(0)) for _ in range(2)]
    twin = "the same long beginning " * 40
    async with engine_over(*runners, clock=still, max_queue=0) as engine:
        assert await served_by(engine, runners, [twin + "a", twin + "b"]) == [0, 1]


@pytest.mark.parametrize("n", [1, 7])
async def test_one_instance_needs_no_choice(n: int) -> None:
    runner = FakeRunner()
    async with engine_over(runner) as engine:
        assert len(await run(engine, *[request(f"r{i}") for i in range(n)])) == n
