"""The scheduler as a pure decider."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from server.engine.encode import Encoding
from server.engine.lora import AdapterSet
from server.engine.media import MediaSpan, media_tokens
from server.engine.params import EngineParams
from server.engine.placement import Placement
from server.engine.queue import OUTPUT_WEIGHT
from server.engine.request import BACKGROUND_PRIORITY, Adapters
from server.engine.runner_api import RunnerInfo
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence
from server.errors import InternalError
from tests.support.fakes import FakeChunk
from tests.unit.engine.builders import sequence


def scheduler(n_seq: int = 2, *, unified: bool = False, n_cells: int = 2000, **params: float) -> Scheduler:
    n_ctx = n_cells if unified else n_cells // n_seq
    return Scheduler(RunnerInfo(n_seq, n_ctx, n_cells, 512, 512, unified), EngineParams(**params))  # type: ignore[arg-type]


def waiting(s: Scheduler, prompt: list[int], *, at: float = 0.0, **options: Any) -> Sequence:
    s.enqueue(made := sequence(prompt, at=at, **options))
    return made


def place(s: Scheduler, now: float = 0.0) -> Placement:
    placement = s.place(0.0)
    assert placement is not None
    slot, source = placement.slot, placement.source
    slot.tokens = list(source.tokens[: placement.n_reuse]) if source is not None else []
    s.occupy(placement, now)
    return placement


def placed(s: Scheduler, prompt: list[int], **options: Any) -> Sequence:
    made = waiting(s, prompt, **options)
    assert place(s).sequence is made
    return made


def decoding(s: Scheduler, prompt: list[int], **options: Any) -> Sequence:
    """A sequence that was placed, with its prompt in the cells and a first token."""
    made = placed(s, prompt, **options)
    made.held.tokens, made.phase, made.output = list(prompt), Phase.DECODE, [5]
    return made


def active_under(s: Scheduler, adapters: Adapters) -> Sequence:
    """A sequence in a slot, whose prompt is not computed yet."""
    made = waiting(s, list(range(400)))
    made.ticket.adapter_set = AdapterSet(adapters, 0)
    place(s)
    return made


def finish(s: Scheduler, ended: Sequence, now: float) -> None:
    s.release(ended, now)
    ended.phase = Phase.ENDED


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    s = scheduler()
    s.slots[1].tokens = list(range(100))
    waiting(s, [*range(100), 7, 7])
    placement = place(s)
    assert placement.slot is s.slots[1]
    assert placement.n_reuse == 100


@pytest.mark.parametrize("copy_s", [0.5, 2.0])
def test_a_beginning_is_waited_for_where_its_copy_will_pay(copy_s: float) -> None:
    s = Scheduler(RunnerInfo(2, 10_000, 20_000, 512, 512, False, copy_s=copy_s), EngineParams())
    s.move_budget.observe_computed(1000, 1.0)  # the 1000 tokens that both begin with take a second
    s.move_budget.bandwidth = 1.0  # and their state for ever
    placed(s, [*range(1000), 7, 7])
    twin = waiting(s, [*range(1000), 8, 8])
    if copy_s < 1.0:
        assert s.place(0.0) is None
    else:
        placement = place(s)
        assert (placement.sequence, placement.source) == (twin, None)


def test_a_prefix_that_is_being_computed_is_waited_for_and_others_go_first() -> None:
    s = scheduler(3)
    first = placed(s, list(range(300)))
    sharing = waiting(s, [*range(200), 5])
    other = waiting(s, [4, 4, 4])
    assert place(s).sequence is other
    assert s.place(0.0) is None
    first.held.tokens, first.phase = list(range(300)), Phase.DECODE
    placement = place(s)
    assert placement.sequence is sharing
    assert placement.n_reuse == 200


def test_without_truncation_a_prefill_that_is_past_the_prefix_hides_no_other() -> None:
    s = Scheduler(RunnerInfo(3, 4000, 12_000, 512, 512, unified=False, can_cut=False), EngineParams())
    shared, prompts = list(range(1500)), list[Sequence]()
    for n_computed in (1800, 100):
        prompts.append(placed(s, [*shared, *[n_computed] * 1000]))
        prompts[-1].held.tokens, prompts[-1].held.floor = prompts[-1].target[:n_computed], n_computed
    third = waiting(s, [*shared, 7])
    assert s.place(0.0) is None
    assert s.placer.awaited == {third: (prompts[1], 1500)}
    assert 1500 in prompts[1].checkpoint_positions


def test_nobody_waits_for_tokens_that_were_shifted() -> None:
    s = scheduler()
    first = placed(s, list(range(300)))
    first.held.n_exact = 20
    waiting(s, [*range(200), 5])
    assert place(s).n_reuse == 0


@pytest.mark.parametrize(("n_waiting", "n_left"), [(7, 43), (2, 14), (1, 14)])
def test_for_the_last_tokens_of_a_prefix_nobody_waits(n_waiting: int, n_left: int) -> None:
    """Eight clients with one picture each waited for the words that their questions began with, one after the other."""
    s = scheduler(8, n_cells=8000)
    prefix = list(range(200))
    first = placed(s, [*prefix, *range(500, 500 + n_left)])
    for i in range(n_waiting):
        waiting(s, [*prefix, *range(500, 506), 600 + i % 2, 700 + i])
    assert s.place(0.0) is None
    first.held.tokens = list(prefix)  # 6 tokens of theirs are to come
    assert [place(s).n_reuse for _ in range(n_waiting)] == [200] * n_waiting
    assert len(s.plan()) == 1 + n_waiting


@pytest.mark.parametrize("leaves", [True, False])
def test_a_prompt_is_urgent_as_long_as_an_urgent_one_waits_for_its_beginning(leaves: bool) -> None:
    s = scheduler(4, n_cells=16384, target_itl_ms=0)
    slow, other = waiting(s, list(range(4000)), priority=10, at=2.0), waiting(s, [7] * 3000, at=1.0)
    place(s)
    place(s)
    urgent = waiting(s, [*range(600), 6], at=5.0, priority=-10)
    assert s.place(0.0) is None
    if leaves:
        finish(s, urgent, 0.0)
    first = s.plan()[0].sequence
    assert first is (other if leaves else slow)
    s.commit(s.plan(), 0.01)  # begins with the oldest, as every second step does
    while slow.n_computed < 600:
        s.commit(s.plan(), 0.01)
    assert other.phase is Phase.DECODE or s.plan()[0].sequence is other  # its own priority holds again


def test_generated_tokens_come_before_prompts_and_prompts_by_age() -> None:
    s = scheduler(3, min_chunk=8)
    s.step_size.size = 12
    young, old, running = waiting(s, [2] * 10, at=2.0), waiting(s, [1] * 10, at=1.0), waiting(s, [3], at=3.0)
    for _ in range(3):
        place(s)
    running.held.tokens, running.phase, running.output = [3], Phase.DECODE, [5]
    entries = s.plan()
    assert [(e.sequence, len(e.tokens)) for e in entries] == [(running, 1), (young, 2), (old, 10)]  # by their slots
    assert entries[0].tokens == [5]
    assert entries[0].pos == 1


@pytest.mark.parametrize(("step_s", "n_streams", "n"), [(0.0, 1, 192), (0.016, 1, 128), (0.016, 0, 192)])
def test_a_picture_beside_streams_leaves_them_the_time_of_their_own_batch(
    step_s: float, n_streams: int, n: int
) -> None:
    s = scheduler(2, target_itl_ms=300.0)
    s.step_size.size, s.step_size_prefill_only.size, s.move_budget.step_s = 192, 512, step_s
    s.move_budget.observe_computed(1000, 1.0)
    for _ in range(n_streams):
        decoding(s, [3])
    span = MediaSpan(0, 192, 192, True, "a", chunk=FakeChunk("a"))
    seeing = placed(s, [*media_tokens("a", 0, 192), 1, 2], media=(span,))
    seeing.encodings[0] = Encoding(FakeChunk("a"), b"a")
    seeing.encodings[0].set_result(b"")
    assert [len(e.tokens) for e in s.plan() if e.sequence is seeing] == [n]


def test_a_medium_that_fails_just_before_a_step_is_planned_ends_no_other_request() -> None:
    """The encoder works in a thread of its own: the step has just looked for failures."""
    s = scheduler(2)
    running = decoding(s, [3])
    span = MediaSpan(0, 192, 192, True, "a", chunk=FakeChunk("a"))
    seeing = placed(s, [*media_tokens("a", 0, 192), 1, 2], media=(span,))
    seeing.encodings[0] = Encoding(FakeChunk("a"), b"a")
    seeing.encodings[0].set_exception(InternalError("it can't be encoded"))
    assert [run.sequence for run in s.plan()] == [running]


def test_drafts_leave_outputs_for_prompts_whose_log_probabilities_are_wanted() -> None:
    s = Scheduler(RunnerInfo(2, 1000, 2000, 512, 512, False, n_more_outputs=16), EngineParams())
    running, scored = decoding(s, [1] * 10), placed(s, [2] * 40, prompt_logprobs=True)
    runs = s.plan(lambda sequences, room: [[7] * room for _ in sequences])
    assert [run.sequence for run in runs] == [running, scored]


@pytest.mark.parametrize(
    ("size", "n_prompt", "caps", "runs"),
    [
        (128, 300, {}, [128, 108, 64]),  # and not 44 at the end, which would take longer than 64
        (64, 190, {}, [64, 126]),
        (64, 190, {"max_prefill_tokens": 64}, [64, 64, 62]),
        (64, 128, {}, [64, 64]),
        (32, 70, {"min_chunk": 1}, [32, 32, 6]),
    ],
)
def test_the_last_run_of_a_prompt_is_no_partial_tile(
    size: int, n_prompt: int, caps: dict[str, Any], runs: list[int]
) -> None:
    s = scheduler(2, target_itl_ms=300.0, **caps)
    s.step_size.smallest = 1
    decoding(s, [3])
    prompt = placed(s, [1] * n_prompt)
    found = []
    while prompt.phase is Phase.PREFILL:
        s.step_size.size = size
        plan = s.plan()
        found.append(sum(len(run.tokens) for run in plan if run.sequence is prompt))
        s.commit(plan, 0.01)
    assert found == runs


def test_a_last_run_that_is_longer_leaves_a_token_to_who_joins_two_neighbours() -> None:
    s = scheduler(4, n_cells=6000)
    for i in (3, 4, 5):
        decoding(s, [i])
    between = s.slots[1].sequence
    assert between is not None
    finish(s, between, 0.0)
    for prompt in ([2] * 120, [1] * 400):  # slot 3 is empty, so it is taken first
        placed(s, prompt)
    s.step_size.size = 100
    assert {run.seq: len(run.tokens) for run in s.plan()} == {0: 1, 1: 1, 2: 1, 3: 120}


@pytest.mark.parametrize(
    ("caps", "n_streams", "expected"),
    [
        ({}, 1, [100, 92]),
        ({"max_prefill_tokens": 40}, 1, [40]),
        ({"max_prefill_tokens": 40}, 0, [100, 300]),  # nothing decodes
        ({"max_prefill_tokens": 130, "max_prefills": 1}, 1, [100]),
        ({"max_prefill_tokens": 130}, 1, [100, 30]),
    ],
)
def test_caps_bound_the_prefill_of_a_step_that_decodes(
    caps: dict[str, Any], n_streams: int, expected: list[int]
) -> None:
    s = scheduler(3, n_cells=6000, **caps)
    s.step_size.size = 192
    running = decoding(s, [3])
    if not n_streams:
        finish(s, running, 0.0)
    prompts = [waiting(s, [i] * n) for i, n in ((1, 100), (2, 300))]
    for _ in prompts:
        place(s)
    runs = {id(run.sequence): len(run.tokens) for run in s.plan()}
    assert [runs[id(prompt)] for prompt in prompts if id(prompt) in runs] == expected


def test_the_automatic_step_target_depends_on_the_device() -> None:
    info = RunnerInfo(1, 512, 512, 512, 512, unified=False)
    for params, is_gpu, target_s in (
        (EngineParams(), False, 0.3),
        (EngineParams(), True, 0.06),
        (EngineParams(target_itl_ms=150.0), True, 0.15),
        (EngineParams(target_itl_ms=0.0), False, inf),
    ):
        assert Scheduler(replace(info, deferred=is_gpu), params).step_size.target_s == target_s


def test_a_requested_slot_is_waited_for_while_others_pass() -> None:
    s = scheduler(2)
    first = placed(s, [1, 2], id_slot=0)
    bound, free = waiting(s, [3, 4], id_slot=0), waiting(s, [5, 6])
    assert place(s).sequence is free
    finish(s, first, 1.0)
    assert place(s).sequence is bound


def test_a_stream_of_new_lora_sets_keeps_nobody_waiting() -> None:
    s = scheduler(3)
    patient = active_under(s, ((0, 1.0),))
    patient.output, steps_between = [1], 0
    for number in range(20):
        brief = active_under(s, ((0, -1.0 - number),))
        entries = s.plan()
        steps_between = 0 if entries[0].sequence is patient else steps_between + 1
        assert steps_between < 3
        s.commit(entries, 0.01)
        finish(s, brief, float(number))


@pytest.mark.parametrize(
    ("target_itl_ms", "step_s", "n_sets", "n_steps"),
    [(250, 0.02, 2, 6), (250, 0.02, 3, 3), (250, 0.2, 2, 1), (250, 0.0001, 4, 416), (0, 0.4, 2, 3)],  # half; of 3 s
)
def test_a_lora_set_keeps_its_turn_as_long_as_the_others_can_wait(
    target_itl_ms: float, step_s: float, n_sets: int, n_steps: int
) -> None:
    s = scheduler(n_sets, target_itl_ms=target_itl_ms)
    for number in range(n_sets):
        active_under(s, ((number, 1.0),)).output = [1]
    runs: list[list[Sequence]] = []
    for _ in range(n_steps * n_sets * 2):
        entries = s.plan()
        assert len(entries) == 1
        if not runs or runs[-1][0] is not entries[0].sequence:
            runs.append([])
        runs[-1].append(entries[0].sequence)
        entries[0].tokens = entries[0].tokens[:1]
        s.commit(entries, step_s)
    assert {len(run) for run in runs} == {n_steps}
    assert [run[0] for run in runs[:n_sets]] == [run[0] for run in runs[n_sets:]]


def test_a_copy_takes_the_whole_stream_so_a_short_header_of_a_long_context_is_computed() -> None:
    """On 8B with 128k a slot, 20 tokens would cost a copy of 16 GiB; it used to be made for 16 of them."""
    info = RunnerInfo(2, 131_072, 262_144, 512, 512, False, copy_s=0.5)
    s = Scheduler(info, EngineParams())
    s.move_budget.observe_computed(1000, 1.0)
    s.move_budget.bandwidth = 500e6
    s.slots[0].tokens = list(range(100))
    waiting(s, [*range(20), *[9] * 500])
    placement = place(s)
    assert (placement.slot, placement.source, placement.n_reuse) == (s.slots[1], None, 0)
    s.slots[0].tokens = list(range(2000))
    finish(s, placement.sequence, 0.0)
    waiting(s, [*range(1500), *[8] * 20_000])
    placement = place(s)
    assert (placement.slot, placement.source, placement.n_reuse) == (s.slots[1], s.slots[0], 1500)


def test_a_prefill_costs_what_its_step_takes_longer_than_one_that_only_decodes() -> None:
    """Otherwise the more sequences decode, the more a recomputation seems to cost, and the more states are moved."""
    s = scheduler(2, n_cells=4000)
    running = decoding(s, [3])
    s.commit(s.plan(), 0.1)
    placed(s, [7] * 500)
    entries = s.plan()
    n = sum(len(e.tokens) for e in entries if e.sequence is not running)
    s.move_budget.computed = 0.0  # what the first token took
    s.commit(entries, 0.15)
    assert s.move_budget.compute_s(n) == pytest.approx(0.05)
    s.move_budget.observe_computed(500, 0.1, decodes=True)  # no longer than a step without them: nothing is learned
    assert s.move_budget.compute_s(n) == pytest.approx(0.05)


def test_a_prompt_is_charged_when_it_gets_a_slot_and_what_is_not_computed_is_given_back() -> None:
    s = scheduler()
    s.slots[0].tokens = list(range(100))
    left, preempted = (waiting(s, [*range(100), *[n] * 60], client=str(n)) for n in (7, 8))
    place(s)
    assert s._counters.served("7") == 60  # the others are in its cells
    s.commit(s.plan(), 0.01)
    assert s._counters.served("7") == 60
    place(s)
    n_served = s._counters.served("8")
    s.requeue(preempted, 1.0)
    assert s._counters.served("8") == n_served - 60
    assert place(s).sequence is preempted
    assert s._counters.served("8") == n_served
    left.output = [5]
    s.commit(s.plan(), 0.01)
    assert s._counters.served("7") == 60 + OUTPUT_WEIGHT
    finish(s, left, 2.0)
    assert s._counters.served("7") == 60 + OUTPUT_WEIGHT


def batch_request(s: Scheduler, prompt: list[int], *, at: float = 0.0) -> Sequence:
    return waiting(s, prompt, at=at, priority=BACKGROUND_PRIORITY)


def test_a_live_request_preempts_the_newest_batch_sequence() -> None:
    s = scheduler(2)
    first, second = batch_request(s, [1] * 9), batch_request(s, [2] * 9, at=1.0)
    place(s)
    place(s)
    assert s.background_victim() is None
    waiting(s, [3] * 9)
    assert s.background_victim() is max(first, second, key=lambda each: each.arrival)


@pytest.mark.parametrize("is_batch", [True, False])
def test_for_a_live_request_with_an_id_slot_only_its_holder_is_preempted(is_batch: bool) -> None:
    s = scheduler(3)
    holder = placed(s, [1] * 9, id_slot=0, priority=BACKGROUND_PRIORITY if is_batch else 0)
    placed(s, [2] * 9, at=1.0, priority=BACKGROUND_PRIORITY)
    waiting(s, [3] * 9, id_slot=0)
    assert s.place(0.0) is None
    assert s.background_victim() is (holder if is_batch else None)


def test_no_step_has_batch_sequences_while_a_live_prompt_is_prefilled() -> None:
    s = scheduler(3)
    running = decoding(s, [1] * 9, priority=BACKGROUND_PRIORITY)
    prefilling = placed(s, [2] * 9, priority=BACKGROUND_PRIORITY)
    assert {run.sequence for run in s.plan()} == {running, prefilling}
    live = placed(s, [3] * 9)
    assert {run.sequence for run in s.plan()} == {live}
    live.phase, live.output = Phase.DECODE, [8]
    assert {run.sequence for run in s.plan()} == {running, prefilling, live}


def test_a_batch_prompt_that_a_live_one_waits_for_is_prefilled_beside_others() -> None:
    s = scheduler(3, n_cells=6000)
    batch = placed(s, list(range(500)), priority=BACKGROUND_PRIORITY)
    waiting(s, [*range(400), 7])
    other = waiting(s, [3] * 900)
    assert place(s).sequence is other
    assert s.place(0.0) is None
    assert {run.sequence for run in s.plan()} == {batch, other}


def test_a_batch_request_is_placed_only_when_no_live_one_waits() -> None:
    s = scheduler(2)
    running = placed(s, [1] * 9, id_slot=0)
    batch, live = batch_request(s, [2] * 9), waiting(s, [3] * 9, at=5.0, id_slot=0)
    assert s.place(0.0) is None
    finish(s, running, 1.0)
    assert [place(s).sequence for _ in range(2)] == [live, batch]


def test_a_batch_prompt_is_prefilled_in_short_steps() -> None:
    s = scheduler(1)
    s.step_size.size, s.step_size_prefill_only.size = 64, 512
    placed(s, list(range(500)), priority=BACKGROUND_PRIORITY)
    [run] = s.plan()
    assert len(run.tokens) <= 2 * 64
