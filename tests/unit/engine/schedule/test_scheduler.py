"""The scheduler as a pure decider: slots, waits for prefixes, batches, LoRA sets, background requests."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from server.engine.lora import AdapterSet
from server.engine.media import Encoding, MediaSpan, media_tokens
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


def place(s: Scheduler) -> Placement:
    placement = s.place(0.0)
    assert placement is not None
    slot, source = placement.slot, placement.source
    slot.tokens = list(source.tokens[: placement.n_reuse]) if source is not None else []
    s.occupy(placement, 0.0)
    return placement


def placed(s: Scheduler, prompt: list[int], **options: Any) -> Sequence:
    made = waiting(s, prompt, **options)
    assert place(s).sequence is made
    return made


def decoding(s: Scheduler, prompt: list[int], **options: Any) -> Sequence:
    """Return a placed sequence with its prompt in the cells and a first output token."""
    made = placed(s, prompt, **options)
    made.held.tokens, made.phase, made.output = list(prompt), Phase.DECODE, [5]
    return made


def placed_with(s: Scheduler, adapters: Adapters) -> Sequence:
    """Return a placed sequence under a LoRA set, whose prompt of 400 tokens is not prefilled yet."""
    made = waiting(s, list(range(400)))
    made.ticket.adapter_set = AdapterSet(adapters, 0)
    place(s)
    return made


def finish(s: Scheduler, ended: Sequence, now: float) -> None:
    s.release(ended, now)
    ended.phase = Phase.ENDED


def test_next_turn_of_a_conversation_continues_in_its_slot() -> None:
    s = scheduler()
    s.slots[1].tokens = list(range(100))
    waiting(s, [*range(100), 7, 7])
    placement = place(s)
    assert placement.slot is s.slots[1]
    assert placement.n_reuse == 100


@pytest.mark.parametrize("copy_s", [0.5, 2.0])
def test_prefix_is_awaited_if_copying_it_will_be_faster_than_computing(copy_s: float) -> None:
    s = Scheduler(RunnerInfo(2, 10_000, 20_000, 512, 512, False, copy_s=copy_s), EngineParams())
    s.move_budget.observe_computed(1000, 1.0)  # the shared prefix of 1000 tokens takes 1 s to compute
    s.move_budget.bandwidth = 1.0  # moving its state never pays
    placed(s, [*range(1000), 7, 7])
    second = waiting(s, [*range(1000), 8, 8])
    if copy_s < 1.0:
        assert s.place(0.0) is None
    else:
        placement = place(s)
        assert (placement.sequence, placement.source) == (second, None)


def test_request_that_awaits_a_prefix_is_bypassed_and_then_reuses_it() -> None:
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


def test_prefill_past_the_prefix_is_not_awaited_without_truncation() -> None:
    s = Scheduler(RunnerInfo(3, 4000, 12_000, 512, 512, unified=False, can_cut=False), EngineParams())
    shared, prompts = list(range(1500)), list[Sequence]()
    for n_computed in (1800, 100):
        prompts.append(placed(s, [*shared, *[n_computed] * 1000]))
        prompts[-1].held.tokens, prompts[-1].held.floor = prompts[-1].target[:n_computed], n_computed
    third = waiting(s, [*shared, 7])
    assert s.place(0.0) is None
    assert third.awaited == (prompts[1], 1500)
    assert 1500 in prompts[1].checkpoint_positions


def test_shifted_tokens_are_not_awaited() -> None:
    s = scheduler()
    first = placed(s, list(range(300)))
    first.held.n_exact = 20
    waiting(s, [*range(200), 5])
    assert place(s).n_reuse == 0


@pytest.mark.parametrize(("n_waiting", "n_left"), [(7, 43), (2, 14), (1, 14)])
def test_last_few_tokens_of_a_prefix_are_not_awaited(n_waiting: int, n_left: int) -> None:
    """Eight clients with the same image waited, one after the other, for the few words that their questions shared."""
    s = scheduler(8, n_cells=8000)
    prefix = list(range(200))
    first = placed(s, [*prefix, *range(500, 500 + n_left)])
    for i in range(n_waiting):
        waiting(s, [*prefix, *range(500, 506), 600 + i % 2, 700 + i])
    assert s.place(0.0) is None
    first.held.tokens = list(prefix)  # 6 more shared tokens are not computed yet
    assert [place(s).n_reuse for _ in range(n_waiting)] == [200] * n_waiting
    assert len(s.plan()) == 1 + n_waiting


@pytest.mark.parametrize("priority", [10, 0, -10])
def test_request_awaits_no_prefix_that_a_less_urgent_request_computes(priority: int) -> None:
    s = scheduler(4, n_cells=16384, target_itl_ms=0)
    first = placed(s, list(range(4000)))
    first.held.tokens = list(range(100))
    other = waiting(s, [*range(600), 6], priority=priority)
    placement = s.place(0.0)
    if priority >= 0:
        assert (placement, other.awaited) == (None, (first, 600))
    else:  # it computes what is not computed yet
        assert placement is not None
        assert (placement.n_reuse, other.awaited) == (100, None)


def test_step_has_decode_tokens_first_and_prefills_the_older_prompt_first() -> None:
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


@pytest.mark.parametrize(("step_s", "n_decoding", "n"), [(0.0, 1, 192), (0.016, 1, 128), (0.016, 0, 192)])
def test_media_prefill_leaves_time_for_the_decode_batch_before_it(step_s: float, n_decoding: int, n: int) -> None:
    s = scheduler(2, target_itl_ms=300.0)
    s.step_size.size, s.step_size_prefill_only.size, s.move_budget.step_s = 192, 512, step_s
    s.move_budget.observe_computed(1000, 1.0)
    for _ in range(n_decoding):
        decoding(s, [3])
    with_image, encoding = placed_with_image(s)
    encoding.set_result(b"")
    assert [len(e.tokens) for e in s.plan() if e.sequence is with_image] == [n]


def placed_with_image(s: Scheduler) -> tuple[Sequence, Encoding]:
    """Return a placed sequence that starts with an image of 192 tokens, and the pending encoding of that."""
    span = MediaSpan(0, 192, 192, True, "a", chunk=FakeChunk("a"))
    made = placed(s, [*media_tokens("a", 0, 192), 1, 2], media=(span,))
    encoding = made.encodings[0] = Encoding(FakeChunk("a"), b"a")
    return made, encoding


def test_sequence_whose_medium_cannot_be_encoded_is_left_out_of_the_step() -> None:
    """The encoder thread may fail between the step's check for failed media and its plan."""
    s = scheduler(2)
    running = decoding(s, [3])
    _, encoding = placed_with_image(s)
    encoding.set_exception(InternalError("it can't be encoded"))
    assert [run.sequence for run in s.plan()] == [running]


def test_drafts_leave_outputs_for_prompt_logprobs() -> None:
    s = Scheduler(RunnerInfo(2, 1000, 2000, 512, 512, False, n_extra_outputs=16), EngineParams())
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
def test_last_prefill_run_of_a_prompt_is_no_partial_tile(
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


def test_longer_last_run_leaves_a_token_for_a_prompt_between_two_decoding_slots() -> None:
    s = scheduler(4, n_cells=6000)
    for i in (3, 4, 5):
        decoding(s, [i])
    second = s.slots[1].sequence
    assert second is not None
    finish(s, second, 0.0)
    for prompt in ([2] * 120, [1] * 400):  # slot 3 is empty, so it is taken first
        placed(s, prompt)
    s.step_size.size = 100
    assert {run.seq: len(run.tokens) for run in s.plan()} == {0: 1, 1: 1, 2: 1, 3: 120}


@pytest.mark.parametrize(
    ("caps", "n_decoding", "expected"),
    [
        ({}, 1, [100, 92]),
        ({"max_prefill_tokens": 40}, 1, [40]),
        ({"max_prefill_tokens": 40}, 0, [100, 300]),  # nothing decodes
        ({"max_prefill_tokens": 130, "max_prefills": 1}, 1, [100]),
        ({"max_prefill_tokens": 130}, 1, [100, 30]),
    ],
)
def test_max_prefill_options_limit_only_steps_that_also_decode(
    caps: dict[str, Any], n_decoding: int, expected: list[int]
) -> None:
    s = scheduler(3, n_cells=6000, **caps)
    s.step_size.size = 192
    running = decoding(s, [3])
    if not n_decoding:
        finish(s, running, 0.0)
    prompts = [waiting(s, [i] * n) for i, n in ((1, 100), (2, 300))]
    for _ in prompts:
        place(s)
    runs = {id(run.sequence): len(run.tokens) for run in s.plan()}
    assert [runs[id(prompt)] for prompt in prompts if id(prompt) in runs] == expected


def test_automatic_step_target_depends_on_the_device() -> None:
    info = RunnerInfo(1, 512, 512, 512, 512, unified=False)
    for params, is_gpu, target_s in (
        (EngineParams(), False, 0.3),
        (EngineParams(), True, 0.06),
        (EngineParams(target_itl_ms=150.0), True, 0.15),
        (EngineParams(target_itl_ms=0.0), False, inf),
    ):
        assert Scheduler(replace(info, deferred=is_gpu), params).step_size.target_s == target_s


def test_request_for_a_busy_id_slot_waits_and_is_bypassed() -> None:
    s = scheduler(2)
    first = placed(s, [1, 2], id_slot=0)
    bound, free = waiting(s, [3, 4], id_slot=0), waiting(s, [5, 6])
    assert place(s).sequence is free
    finish(s, first, 1.0)
    assert place(s).sequence is bound


def test_new_lora_sets_without_end_do_not_starve_an_older_one() -> None:
    s = scheduler(3)
    oldest = placed_with(s, ((0, 1.0),))
    oldest.output, steps_between = [1], 0
    for number in range(20):
        brief = placed_with(s, ((0, -1.0 - number),))
        entries = s.plan()
        steps_between = 0 if entries[0].sequence is oldest else steps_between + 1
        assert steps_between < 3
        s.commit(entries, 0.01)
        finish(s, brief, float(number))


@pytest.mark.parametrize(
    ("target_itl_ms", "step_s", "n_sets", "n_steps"),
    [(250, 0.02, 2, 6), (250, 0.02, 3, 3), (250, 0.2, 2, 1), (250, 0.0001, 4, 416), (0, 0.4, 2, 3)],
)
def test_turn_of_a_lora_set_lasts_half_of_the_target_shared_by_the_other_sets(
    target_itl_ms: float, step_s: float, n_sets: int, n_steps: int
) -> None:
    """Without a target, half of the 3 s of a prefill-only step."""
    s = scheduler(n_sets, target_itl_ms=target_itl_ms)
    for number in range(n_sets):
        placed_with(s, ((number, 1.0),)).output = [1]
    turns: list[list[Sequence]] = []
    for _ in range(n_steps * n_sets * 2):
        entries = s.plan()
        assert len(entries) == 1
        if not turns or turns[-1][0] is not entries[0].sequence:
            turns.append([])
        turns[-1].append(entries[0].sequence)
        entries[0].tokens = entries[0].tokens[:1]
        s.commit(entries, step_s)
    assert {len(turn) for turn in turns} == {n_steps}
    assert [turn[0] for turn in turns[:n_sets]] == [turn[0] for turn in turns[n_sets:]]


def test_short_prefix_is_computed_if_copying_its_whole_stream_takes_longer() -> None:
    """For an 8B model with 128k tokens per slot, a prefix of 20 tokens was copied with a stream of 16 GiB."""
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


def test_prefill_rate_counts_only_the_time_beyond_a_decode_only_step() -> None:
    """Otherwise recomputing seems to cost more the more sequences decode, and too many states are moved."""
    s = scheduler(2, n_cells=4000)
    running = decoding(s, [3])
    s.commit(s.plan(), 0.1)
    placed(s, [7] * 500)
    entries = s.plan()
    n = sum(len(e.tokens) for e in entries if e.sequence is not running)
    s.move_budget.prefill_rate = 0.0  # forget the first prefill
    s.commit(entries, 0.15)
    assert s.move_budget.compute_s(n) == pytest.approx(0.05)
    s.move_budget.observe_computed(500, 0.1, decodes=True)  # no longer than a decode-only step: ignored
    assert s.move_budget.compute_s(n) == pytest.approx(0.05)


def test_client_is_charged_for_a_prompt_at_placement_and_refunded_for_uncomputed_tokens() -> None:
    s = scheduler()
    s.slots[0].tokens = list(range(100))
    finished, preempted = (waiting(s, [*range(100), *[n] * 60], client=str(n)) for n in (7, 8))
    place(s)
    assert s._counters.served("7") == 60  # the other 100 tokens are cached
    s.commit(s.plan(), 0.01)
    assert s._counters.served("7") == 60
    place(s)
    n_served = s._counters.served("8")
    s.requeue(preempted, 1.0)
    assert s._counters.served("8") == n_served - 60
    assert place(s).sequence is preempted
    assert s._counters.served("8") == n_served
    finished.output = [5]
    s.commit(s.plan(), 0.01)
    assert s._counters.served("7") == 60 + OUTPUT_WEIGHT
    finish(s, finished, 2.0)
    assert s._counters.served("7") == 60 + OUTPUT_WEIGHT


# ---- background requests


def test_live_request_preempts_the_newest_background_sequence() -> None:
    s = scheduler(2)
    placed(s, [1] * 9, priority=BACKGROUND_PRIORITY)
    newest = placed(s, [2] * 9, at=1.0, priority=BACKGROUND_PRIORITY)
    assert s.background_victim() is None
    waiting(s, [3] * 9)
    assert s.background_victim() is newest


@pytest.mark.parametrize("is_background", [True, False])
def test_live_request_with_an_id_slot_preempts_only_a_background_holder_of_that_slot(is_background: bool) -> None:
    s = scheduler(3)
    holder = placed(s, [1] * 9, id_slot=0, priority=BACKGROUND_PRIORITY if is_background else 0)
    placed(s, [2] * 9, at=1.0, priority=BACKGROUND_PRIORITY)
    waiting(s, [3] * 9, id_slot=0)
    assert s.place(0.0) is None
    assert s.background_victim() is (holder if is_background else None)


def test_steps_that_prefill_a_live_prompt_have_no_background_sequences() -> None:
    s = scheduler(3)
    running = decoding(s, [1] * 9, priority=BACKGROUND_PRIORITY)
    prefilling = placed(s, [2] * 9, priority=BACKGROUND_PRIORITY)
    assert {run.sequence for run in s.plan()} == {running, prefilling}
    live = placed(s, [3] * 9)
    assert {run.sequence for run in s.plan()} == {live}
    live.phase, live.output = Phase.DECODE, [8]
    assert {run.sequence for run in s.plan()} == {running, prefilling, live}


def test_background_request_is_placed_only_when_no_live_one_waits() -> None:
    s = scheduler(2)
    running = placed(s, [1] * 9, id_slot=0)
    background = waiting(s, [2] * 9, priority=BACKGROUND_PRIORITY)
    live = waiting(s, [3] * 9, at=5.0, id_slot=0)
    assert s.place(0.0) is None
    finish(s, running, 1.0)
    assert [place(s).sequence for _ in range(2)] == [live, background]


def test_background_prompt_is_prefilled_in_short_steps() -> None:
    s = scheduler(1)
    s.step_size.size, s.step_size_prefill_only.size = 64, 512
    placed(s, list(range(500)), priority=BACKGROUND_PRIORITY)
    [run] = s.plan()
    assert len(run.tokens) <= 2 * 64
