"""Random engines, requests, commands and faults: each request ends once and correctly, and leaves no resources.

The seed determines a scenario: the engine, the requests and commands with their order, and the probability of faults.
Threads determine how steps interleave and where a fault occurs, so a failed seed may have to be repeated several times.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import pytest

from server.engine.cache.prefix_cache import CacheEntry
from server.engine.engine import Engine
from server.engine.instances import stacks
from server.engine.loop import MAX_FAULTS
from server.engine.lora import Adapter
from server.engine.media import text_of
from server.engine.params import EngineParams
from server.engine.request import BACKGROUND_PRIORITY, Event, Failed, Finished, PromptLogprobs, Request, SamplingParams
from server.engine.runner_api import BatchEntry
from server.engine.scheduler import TokenRun
from server.errors import InternalError, InvalidRequest, LlamapoolError, NotNumbers, ShuttingDown, TooLate
from tests.support.fakes import FakeChunk, FakeEncoder, FakeRunner, FakeSampler
from tests.support.sampling import EXAMPLES_SHARE
from tests.unit.engine.builders import Reply, expected_text
from tests.unit.engine.cache.fake_files import FakeFiles
from tests.unit.engine.speculate.fake_draft import FakeDraft
from tests.unit.engine.speculate.test_same_output import LettersOnly
from tests.unit.engine.test_media_requests import Part, image, media_request

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", 80 // EXAMPLES_SHARE))
"""Number of seeds, starting with FIRST. `make fuzz-engine` runs more."""
FIRST = int(os.environ.get("FUZZ_SEED", "1"))
DEADLINE_S = 100.0
"""A scenario that takes longer hangs."""

ADAPTERS = (Adapter(0, "plain"), Adapter(1, "other"), Adapter(2, "activated", alora_invocation_tokens=tuple(b"bc")))
ADAPTER_SETS = [(), ((0, 1.0),), ((0, 1.0), (1, 2.0)), ((2, 1.0),)]
TEXTS = ["sing", "sing " * 8, "a" * 40, "ab" * 40, "abc" * 15, "x"]
VERSE = "row row row your boat gently " * 7  # letters and blanks, which `LettersOnly` allows
WINDOW = 20
N_LETTERS = 30  # of a constrained reply
LONGEST_PROMPT = 200  # tokens; the context has 300


class Fatal(BaseException):
    """Ends the step thread."""


class Faults:
    """Draws faults if `enabled`. ``affected``: what identifies each request that one of them may have failed."""

    def __init__(self, seed: str, enabled: bool) -> None:
        self._rng = Random(seed)
        self._enabled = enabled
        self.affected: list[object] = []

    def draw(self, probability: float, *affected: object) -> bool:
        """Return whether a fault occurs, and record what it may affect."""
        occurs = self._enabled and self._rng.random() < probability
        if occurs:
            self.affected += affected
        return occurs

    def may_raise(self, probability: float, *affected: object, kinds: Sequence[type[BaseException]] = ()) -> None:
        if self.draw(probability, *affected):
            raise self._rng.choice(kinds or (InternalError, MemoryError))("injected")


class FaultyRunner(FakeRunner):
    """A runner with random faults. `removable`: the tokens that it can remove from the end of a sequence: "any", those
    in a "window", those of the last "decode", or "none".

    A fault of a decode may fail a request that is alone in the batch, or that was in too many rejected batches. A fault
    of a sampler may fail its request, a fault of a cache none. ``died``: the step thread has ended, so all requests of
    the instance fail. ``n_not_finite`` counts injected non-finite logits.
    """

    def __init__(self, faults: Faults, removable: str, *, may_die: bool, **options: Any) -> None:
        super().__init__(partial_removal=removable == "any", n_rollback=2 * (removable == "decode"), **options)
        self.partial_removal = removable in ("any", "window")
        self.faults, self._removable_tokens, self._may_die = faults, removable, may_die
        self.died, self.n_not_finite = False, 0
        self._prompts: dict[int, tuple[int, ...]] = {}  # by the sampler's identity
        for name, probability in (("seq_size", 0.02), ("seq_save", 0.03), ("seq_checkpoint", 0.03), ("seq_copy", 0.02)):
            setattr(self, name, partial(self._call_or_raise, probability, getattr(self, name)))

    def _call_or_raise(self, probability: float, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.faults.may_raise(probability)
        return method(*arguments, **options)

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        requests: list[object] = [entry.sequence.request for entry in entries if isinstance(entry, TokenRun)]
        if len(entries) > 1:  # the engine then retries each of them alone
            requests = [("shared", request) for request in requests]
        self.faults.may_raise(0.004, *requests)
        if self._may_die and self.faults.draw(0.001):
            self.died = True
            raise Fatal("injected")
        return not self.faults.draw(0.01, *requests) and super().decode(entries)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> FakeSampler:
        self.faults.may_raise(0.01, tuple(prompt))
        made = super().sampler(params, prompt)
        self._prompts[id(made)] = tuple(prompt)
        return made

    def sample(self, output: int, sampler: FakeSampler) -> int:
        prompt = self._prompts[id(sampler)]
        self.faults.may_raise(0.001, prompt, kinds=[InternalError])
        if self.faults.draw(0.001, prompt):
            self.n_not_finite += 1
            raise NotNumbers
        return super().sample(output, sampler)

    def may_have_failed(self, request: Request, error: Exception) -> bool:
        """Return whether a fault of this runner explains the `error` of a request that its instance had."""
        not_finite = isinstance(error, NotNumbers) and bool(request.adapters) and self.n_not_finite > 1
        prompt = tuple(text_of(request.prompt, request.media))
        was_affected = any(one is request or one == prompt for one in self.faults.affected)
        n_shared = sum(isinstance(one, tuple) and one[-1] is request for one in self.faults.affected)
        instance_died = self.died and "the engine has failed" in str(error)
        return was_affected or n_shared > MAX_FAULTS or not_finite or instance_died

    def seq_floor(self, seq: int) -> int:
        n = max(self._at(seq), default=-1) + 1
        return {"any": 0, "window": max(n - WINDOW, 0), "decode": n, "none": n}[self._removable_tokens]

    def seq_remove(self, seq: int, pos: int) -> bool:
        is_out_of_reach = self._removable_tokens == "window" and 0 < pos < self.seq_floor(seq)
        return not is_out_of_reach and super().seq_remove(seq, pos)

    def seq_load(self, seq: int, state: bytes, n_pos: int) -> bool:
        self.faults.may_raise(0.03)
        return not self._may_clear(seq, 0.03) and super().seq_load(seq, state, n_pos)

    def seq_rewind(self, seq: int, checkpoint: bytes, n_pos: int) -> bool:
        return not self._may_clear(seq, 0.2) and super().seq_rewind(seq, checkpoint, n_pos)

    def _may_clear(self, seq: int, probability: float) -> bool:
        """Clear the sequence, as the library does when it rejects a state; return whether that happened."""
        return self.faults.draw(probability) and super().seq_remove(seq, 0)


class FaultyFiles(FakeFiles):
    """Files on a disk that is sometimes full or damaged."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        self._faults.may_raise(0.05)
        return super().write(name, entry, used)

    def read(self, name: str) -> CacheEntry:
        self._faults.may_raise(0.1, kinds=[InvalidRequest])
        if name not in self.saved:
            raise InvalidRequest("injected: the file was removed meanwhile")
        return super().read(name)

    def used(self, name: str) -> None:
        """Accept also files that were removed meanwhile."""


class FaultyEncoder(FakeEncoder):
    """An encoder that sometimes fails."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(most=3)
        self.faults = faults

    def encode(self, chunks: Sequence[FakeChunk]) -> list[bytes]:
        self.faults.may_raise(0.03, *(chunk.name for chunk in chunks), kinds=[InternalError, ZeroDivisionError])
        return super().encode(chunks)


def random_clock(rng: Random) -> Callable[[], float]:
    """Return a clock that each call advances by up to 1 ms, rarely by 20 ms, as if its thread had waited."""
    lock, now_s = threading.Lock(), [0.0]

    def now() -> float:
        with lock:
            now_s[0] += 0.02 if rng.random() < 0.01 else rng.choice([0.0, 1e-4, 1e-3])
            return now_s[0]

    return now


@dataclass(eq=False)
class CancellableReply(Reply):
    """The reply of a request that the scenario may cancel. ``has_events``: it has received some."""

    cancelled: bool = False
    has_events: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, events: list[Event]) -> None:
        super().receive(events)
        self.has_events.set()

    def check(self, replies: dict[str, str] | None, shifts: bool, is_explained: Callable[[Exception], bool]) -> None:
        """Check that the request ended once: with the text that it gives alone, or with an error that `is_explained`.

        `replies`: those of the runners. `shifts`: whether contexts are shifted.
        """
        ends = [event for event in self.events if isinstance(event, Finished | Failed)]
        if self.error is not None:
            assert isinstance(ends[-1], Failed)
            assert len(ends) == len(self.finished) + 1
            assert is_explained(self.error), f"failed without a reason: {self.error!r}"
            return
        assert self.events[-1] is ends[-1]
        assert len(ends) == len(self.finished) == self.request.n
        for index, end in self.finished.items():
            assert min(end.timings.cache_n, end.timings.prompt_n) >= 0
            text = self.texts.get(index, "")
            if not end.truncated:
                assert text == text_alone(self.request, replies)
            elif not shifts:  # a full context may end a text also inside a stop string
                assert text_alone(replace(self.request, stop=()), replies).startswith(text)
        if self.request.prompt_logprobs:
            scores = [one for event in self.events if isinstance(event, PromptLogprobs) for one in event.tokens]
            assert [one and one.id for one in scores] == [t if t >= 0 else None for t in self.request.prompt[1:]]


def text_alone(request: Request, replies: dict[str, str] | None) -> str:
    """Return the text of a choice without other requests, up to its stop string."""
    n = min(request.max_tokens, N_LETTERS) if request.constraint else request.max_tokens
    text = expected_text(replace(request, max_tokens=n), ADAPTERS, replies)
    return min((text.partition(stop)[0] for stop in request.stop), key=len, default=text)


class Scenario:
    """An engine with fake runners, and a client that randomly submits requests, waits, cancels and sends commands."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = Random(seed)
        self.faulty, removable = rng.random() < 0.6, rng.choice(["any", "any", "window", "decode", "none"])
        self.replies = rng.choice([None, {"sing": VERSE}])
        self.has_timeouts, self.shifts = rng.random() < 0.1, rng.random() < 0.15
        n_seq, n_instances, n_batch = rng.randint(1, 4), rng.choice([1, 1, 2, 3]), rng.choice([24, 48, 64, 128])
        self.n_slots, unified = n_seq * n_instances, rng.random() < 0.5
        self.media = {name: self._medium(name, n_batch) for name in ("a", "b", "c")} if rng.random() < 0.5 else {}
        self.encoder = FaultyEncoder(Faults(f"{seed} encoder", self.faulty)) if self.media else None
        self.files = FaultyFiles(Faults(f"{seed} files", self.faulty)) if rng.random() < 0.5 else None
        n_cells, n_extra_outputs = rng.choice([300, 400, 700]) if unified else None, rng.choice([1, 5, 64])
        may_die, drafts = rng.random() < 0.4, rng.random() < 0.25
        costs: dict[str, Any] = {}
        if not unified and rng.random() < 0.5:  # sequences are relocated to adjacent slots
            costs |= {"evaluation_s": 1e-3, "copy_s": rng.choice([0.0, 0.01])}
        can_shift = all(isinstance(medium, tuple) and medium[2] is None for medium in self.media.values())
        self.runners: list[FaultyRunner] = []
        for i in range(n_instances):
            faults = Faults(f"{seed} runner {i}", self.faulty)
            made = FaultyRunner(
                faults,
                removable,
                may_die=may_die and i > 0,
                n_seq=n_seq,
                n_ctx_seq=300,
                n_batch=n_batch,
                unified=unified,
                n_cells=n_cells,
                n_extra_outputs=n_extra_outputs,
                replies=self.replies,
            )
            made.adapters, made.encoder = ADAPTERS, self.encoder
            made.info = replace(made.info, can_shift=can_shift, **costs)
            if drafts:
                made.draft = FakeDraft(made, wrong=rng.randrange(100), n_cells=rng.choice([300, 1 << 30]))
            self.runners.append(made)
        spec_types = ["draft-simple", "lookup,draft-simple"] if drafts else ["none", "lookup"]
        self.params = EngineParams(
            check_integrity=True,
            gather_ms=rng.choice([0.0, 4.0]),
            max_queue=1 << 20,
            request_timeout_s=0.05 if self.has_timeouts else 0.0,
            queue_timeout_s=0.02 if self.has_timeouts else 0.0,
            cache_ram=rng.choice([0, 0, 1, -1]),
            cache_disk=int(self.files is not None),
            media_cache=1,
            ctx_checkpoints=rng.choice([0, 2, 32]),
            checkpoint_min_step=rng.choice([0, 50]),
            context_shift=self.shifts,
            min_chunk=rng.choice([1, 8, 64]),
            target_itl_ms=rng.choice([0.0, 1.0, 300.0]),
            spec_type=rng.choice(spec_types),
            spec_ngram=rng.choice([(1, 16), (3, 16), (12, 64)]),
            backend_sampling=rng.random() < 0.3,
        )
        self.clock = random_clock(Random(f"{seed} clock"))
        self.conversations: list[list[Part]] = [[], [], []]
        self.submitted: list[CancellableReply] = []
        self.commands: list[asyncio.Task[Any]] = []

    def _medium(self, name: str, n_batch: int) -> Part:
        n, is_linear = self.rng.randrange(1, min(40, n_batch)), self.rng.random() < 0.5
        return image(name, n, None if is_linear else max(1, n // 4), causal=self.rng.random() < 0.5, slow=True)

    async def run(self) -> None:
        """Run the scenario. Raises AssertionError for a wrong result, TimeoutError if something hangs."""
        engine = Engine(self.runners, self.params, asyncio.get_running_loop(), self.clock)
        try:
            async with asyncio.timeout(DEADLINE_S):
                if self.files is not None:
                    await engine.use_disk(self.files)
                engine.watch(wanted=self.rng.random() < 0.3)
                for _ in range(self.rng.randint(3, 25)):
                    await self._act(engine)
                if closed := self.rng.random() < 0.1:
                    self._set_gate(is_open=True)
                else:
                    await self._wait_at_rest(engine)
                    check_nothing_left(engine)
        except TimeoutError as error:
            left = [one.request for one in self.submitted if not one.ended.is_set() and not one.cancelled]
            error.add_note(f"did not end: {left}\n{[one for one in self.commands if not one.done()]}\n{stacks()}")
            raise
        finally:
            self._set_gate(is_open=True)
            async with asyncio.timeout(DEADLINE_S):
                await engine.close()
                await self._wait_ended()
        assert all(runner.closed for runner in self.runners)
        for one in self.submitted:
            if not one.cancelled:
                one.check(self.replies, self.shifts, partial(self._explains, one, closed))
        failed = [c.exception() for c in self.commands if not c.cancelled()]
        assert all(error is None or isinstance(error, LlamapoolError | MemoryError) for error in failed), failed

    def _explains(self, one: CancellableReply, closed: bool, error: Exception) -> bool:
        """Return whether a limit, or a fault that affected this request, explains its `error`."""
        if isinstance(error, ShuttingDown):
            return closed
        if isinstance(error, TooLate):
            return self.has_timeouts
        if one.request.pin_s and "was not pinned" in str(error):
            return True
        if self.encoder is not None:
            names = {span.chunk.name for span in one.request.media if isinstance(span.chunk, FakeChunk)}
            if names & set(self.encoder.faults.affected):
                return True
        return self.runners[one.ticket.instance].may_have_failed(one.request, error)

    async def _act(self, engine: Engine) -> None:
        rng = self.rng
        self._set_gate(is_open=rng.random() < 0.5)
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            one = CancellableReply(self._request())
            try:
                one.ticket = engine.submit(one.request, one.receive)
            except InternalError:  # the instance with its `id_slot` has died
                assert one.request.id_slot >= 0
                assert any(runner.died for runner in self.runners)
                continue
            self.submitted.append(one)
        if self.submitted:
            one, action = rng.choice(self.submitted), rng.choice(["events", "end", "cancel", "cancel", *[""] * 8])
            if action == "cancel" and not one.ended.is_set():
                one.cancelled = True
                engine.cancel(one.ticket)
            elif action in ("events", "end") and not one.cancelled:
                self._set_gate(is_open=True)
                await (one.has_events if action == "events" else one.ended).wait()
        if rng.random() < 0.15:
            await self._command(engine)
        if rng.random() < 0.1:
            engine.limit_caches(rng.choice([-1, 0, 2000, 10**6]))
        if rng.random() < 0.1:
            list(engine.held_texts())
            engine.views()
            engine.cached_states()
            assert len(engine.slots()) == self.n_slots
        for _ in range(rng.choice([0, 1, 10])):
            await asyncio.sleep(0)

    def _request(self) -> Request:
        """Return a request for the next turn of a conversation, or for the first turn of a new one."""
        rng = self.rng
        conversation = rng.choice(self.conversations)
        if rng.random() < 0.2:
            conversation.clear()
        conversation.append(rng.choice(TEXTS) + chr(rng.randrange(97, 103)) * rng.choice([0, 0, 1, 5]))
        if self.media and rng.random() < 0.4:
            conversation.append(rng.choice(list(self.media.values())))
            conversation += [" well?"] * rng.choice([0, 1, 1])
        while len(media_request(conversation).prompt) > LONGEST_PROMPT:
            del conversation[0]
        constrained, in_graph = rng.random() < 0.15, rng.random() < 0.1
        made = media_request(
            conversation,
            max_tokens=rng.choice([1, 3, 8, N_LETTERS, 60] if constrained else [0, 1, 3, 8, 30, 60]),
            sampling=SamplingParams(temperature=0.0, backend_sampling=in_graph),
            constraint=LettersOnly(N_LETTERS) if constrained else None,
            adapters=rng.choice(ADAPTER_SETS) if rng.random() < 0.3 else (),
            stop=("row your",) if rng.random() < 0.3 else (),
            n=rng.choice([1, 1, 1, 2, 3]),
            id_slot=rng.randrange(self.n_slots) if rng.random() < 0.15 else -1,
            priority=rng.choice([0, 0, 1, -1, BACKGROUND_PRIORITY, BACKGROUND_PRIORITY]),
            client=rng.choice("xyz"),
            cache_scope=rng.choice(["", "", "k/", "k/!1"]),
            cache_prompt=rng.random() < 0.9,
            n_cache_reuse=rng.choice([0, 0, 0, 8]),
            prompt_logprobs=rng.random() < 0.15,
            pin_s=1.0 if rng.random() < 0.05 else 0.0,
            n_probs=rng.choice([0, 0, 2]),
            post_sampling_probs=rng.random() < 0.1,
            return_progress=rng.random() < 0.2,
            timings_per_token=rng.random() < 0.2,
        )
        if rng.random() < 0.3:  # the next turn contains the reply
            conversation.append(text_alone(made, self.replies))
        return made

    async def _command(self, engine: Engine) -> None:
        rng = self.rng
        slot, command = rng.randrange(self.n_slots), rng.choice(["save", "erase", "restore", "reset"])
        which, is_cancelled = rng.random(), rng.random() < 0.2
        ended = [one for one in self.commands if one.done() and not one.cancelled() and one.exception() is None]
        saved = [state for one in ended if isinstance(state := one.result(), CacheEntry)]
        work: Coroutine[Any, Any, object]
        if command == "save":
            work = engine.save_slot(slot)
        elif command == "reset":
            work = engine.reset_cache()
        elif command == "erase" or not saved:
            work = engine.erase_slot(slot)
        else:
            work = engine.restore_slot(slot, saved[int(which * len(saved))])
        self.commands.append(asyncio.ensure_future(work))
        await asyncio.sleep(0)  # the engine gets the command
        if is_cancelled:
            self.commands[-1].cancel()

    def _set_gate(self, *, is_open: bool) -> None:
        if self.encoder is not None:
            (self.encoder.gate.set if is_open else self.encoder.gate.clear)()

    async def _wait_ended(self) -> None:
        for one in self.submitted:
            if not one.cancelled:
                await one.ended.wait()
        await asyncio.gather(*self.commands, return_exceptions=True)

    async def _wait_at_rest(self, engine: Engine) -> None:
        """Wait until everything has ended and every step thread waits to be woken."""
        self._set_gate(is_open=True)
        await self._wait_ended()
        await engine.wait_idle()
        while not all(one.at_rest and (one.failure or not one._woken.is_set()) for one in engine._instances):  # noqa: ASYNC110
            await asyncio.sleep(1e-3)  # there is no event for it


def check_nothing_left(engine: Engine) -> None:
    """Check that the requests, which have all ended, hold no slot, cell, sampler or place in a queue."""
    engine.check_integrity()
    engine._ram.check_integrity()
    queue = engine._queue
    assert [*queue.open, *queue._waiting, *range(queue.n_waiting)] == []
    assert engine._encoder is None or not any(one.n_users for one in engine._encoder._open.values())
    for instance in engine._instances:
        scheduler, runner = instance.scheduler, instance.runner
        assert isinstance(runner, FaultyRunner)
        assert (len(scheduler.waiting), scheduler.n_active) == (0, 0)
        assert all(sampler.closed for sampler in runner.samplers)
        if not instance.failure:
            assert len(instance._commands) == 0
            assert [runner.cells[slot.id] for slot in scheduler.slots] == [slot.tokens for slot in scheduler.slots]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_every_request_ends_once_and_correctly_and_leaves_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    try:
        asyncio.run(Scenario(seed).run())
        faults = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert [error for error in faults if "injected" not in str(error)] == []
    except BaseException as error:
        error.add_note(f"to repeat: make fuzz-engine FUZZ_SEED={seed} FUZZ_ROUNDS=1")
        raise
