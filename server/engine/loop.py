"""One native context and the step thread that owns it. Nothing else calls into the runner."""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from server.engine.arrivals import Arrivals
from server.engine.cache.disk_cache import wait_s
from server.engine.cache.prefix_cache import CacheTier
from server.engine.encode import Encoder
from server.engine.instances import StepThread, has_failed
from server.engine.kv_store import Cells, shift_sizes
from server.engine.params import EngineParams
from server.engine.request import FinishReason, Progress
from server.engine.runner_api import Runner
from server.engine.sampling import NextTokens
from server.engine.scheduler import Scheduler, TokenRun, batches
from server.engine.sequence import Phase, Sequence, Slot, log_fields
from server.engine.snapshots import Snapshots, origin_of
from server.engine.speculate.speculation import speculation
from server.engine.tickets import ModelQueue, Requests
from server.errors import CONTAINED, ContextExceeded, LlamapoolError, NotNumbers

log = logging.getLogger(__name__)
T = TypeVar("T")
Command: TypeAlias = tuple[int, Callable[[Cells, Slot, float], Any], Future[Any]]
"""An operation on a slot (its index), or on all (`ANY_SLOT`), and the future of its result."""
ANY_SLOT = -1

MAX_FAULTS = 2  # recomputations without progress after which a sequence is considered faulty
MAX_NOT_FINITE = 8  # the same for non-finite logits, where an adapter may have left them in the cells


class Instance(StepThread):
    """Instance number `number` of a model: owns `runner`, takes tickets from `queue`, and runs steps until stopped."""

    def __init__(
        self,
        runner: Runner,
        params: EngineParams,
        queue: ModelQueue,
        ram: CacheTier,
        number: int,
        clock: Callable[[], float],
        arrivals: Arrivals,
        encoder: Encoder | None = None,
    ) -> None:
        super().__init__("llamapool-step", number, params, clock, arrivals)
        self.runner: Runner = runner
        self.scheduler = Scheduler(runner.info, params, queue.counters, ram)
        self._queue = queue
        first_slot = number * runner.info.n_seq
        self.snapshots = Snapshots(self.scheduler, clock, first_slot)
        self._requests = Requests(self.scheduler, queue, number, self.stats, clock, self.snapshots, encoder, self.wake)
        self.cells = Cells(runner, self.scheduler, clock, self.stats)
        self._shifts = params.context_shift and runner.info.can_shift
        self._speculation = speculation(params, runner, clock)
        self._next_tokens = NextTokens(
            runner, params, first_slot, self.cells, self._requests, self.stats, self._speculation, clock
        )
        self._commands: deque[Command] = deque()  # appended on the event loop, executed on the step thread
        self._stepped = False
        self._untimed = 0, 0.0  # tokens and seconds of decodes that the device may still be computing

    @property
    def spec_type(self) -> str:
        """The speculation type in llama-server's words."""
        return "none" if self._speculation is None else self.params.asked_spec_type

    def command(self, slot: int, work: Callable[[Cells, Slot, float], T]) -> Future[T]:
        """Execute `work` on a slot once it is idle, or before the next step for `ANY_SLOT`; return the future of its
        result.
        """
        done: Future[T] = Future()
        self._commands.append((slot, work, done))
        if self.failure:
            self._refuse_commands(has_failed(self.failure))
        self.wake()
        return done

    def _refuse_commands(self, error: Exception) -> None:
        for *_, done in self._commands.copy():
            with suppress(InvalidStateError):  # the command has ended meanwhile
                done.set_exception(error)

    def give_up(self, error: LlamapoolError) -> None:
        self._refuse_commands(error)
        self._queue.give_up(self.number, error)

    # ---- the step thread

    def _iterate(self) -> None:
        if not self._stepped or self._woken.is_set() or self._commands or self._queue:
            self._woken.clear()
            self._receive()
        self._stepped = self._step()
        if self._stepped:
            return
        self._requests.post()
        while not self._is_wanted and self.cells.write_for_others():
            pass
        if not self._is_wanted:
            self._rest(wait_s(self.scheduler.waiting, self._clock()))

    def _fail_all(self, error: LlamapoolError) -> None:
        """Fail all requests and clear the cells, which are no longer trusted."""
        self._requests.fail_all(error)
        for slot in self.scheduler.slots:
            try:
                self.cells.clear(slot)
            except Exception:  # the thread must survive, otherwise later requests wait forever
                log.exception("slot %d could not be cleared; this is a bug, please report it", slot.id)
        self._requests.post()

    def _end_all(self, error: LlamapoolError) -> None:
        try:
            self._queue.close(self.number)
            self._requests.fail_all(error)
            self._refuse_commands(error)
            self._requests.post()
        finally:
            try:
                if not self.failure:
                    self.cells.save_all(self._clock())
            except Exception:
                log.exception("prompt states could not be saved: they are recomputed; this is a bug, please report it")

    def _receive(self) -> None:
        """Take new tickets and drop cancelled ones. If no request runs and slots would stay free, first wait for
        expected requests, including follow-ups of the last replies. Running requests do not wait: others join them.
        """
        if not self.scheduler.n_active and len(self._queue) + len(self.scheduler.waiting) < len(self.scheduler.slots):
            if self._requests.ended:
                self._arrivals.replied()
            self._requests.post()
            self._gather()
        self._requests.receive()
        if self._commands:
            self._requests.post()
            self._run_commands()

    def _run_commands(self) -> None:
        """Execute commands on idle slots; commands on a busy slot wait, as in llama-server."""
        for command in self._commands.copy():
            index, work, done = command
            slot = self.scheduler.slots[index]
            if index != ANY_SLOT and not slot.idle:
                continue
            self._commands.remove(command)
            if done.done():  # the command was cancelled or refused
                continue
            with suppress(InvalidStateError):  # it was cancelled or refused meanwhile
                try:
                    done.set_result(work(self.cells, slot, self._clock()))
                except Exception as error:  # noqa: BLE001 - the caller handles it
                    done.set_exception(error)

    def _step(self) -> bool:
        """Place, plan, decode, sample. Return False if there is nothing to do.

        Events of the previous step are posted just before this step's decode, which releases the GIL. Posted
        earlier, they would wake the event loop only to wait for the GIL. They are posted earlier only before slow
        operations.
        """
        moves = self.scheduler.move_budget
        if self.params.drafts or self.scheduler.waiting or moves.is_spent:
            self._requests.post()
        if self.scheduler.waiting:
            self._place()
        changes = self.scheduler.kv_budget.changes
        if self.scheduler.placer.slots_changed:
            self._relocate()
        if self._shifts:
            self._shift()
        runs = self.scheduler.plan(self._speculation.propose if self._speculation is not None else None)
        if not runs:
            self._untimed = 0, 0.0  # the device is idle
            has_room = moves.is_spent or self.scheduler.kv_budget.changes > changes  # requests may fit only now
            moves.spent_s = 0.0
            return has_room and bool(self.scheduler.waiting or self._commands)
        for batch in batches(runs, self.runner.info.n_ubatch):
            if not self._decode(batch):
                break
        return True

    def _decode(self, runs: list[TokenRun]) -> bool:
        """Decode one library call and sample. Return False if that failed and a new plan is needed."""
        self._requests.post()
        prefill_runs = [run for run in runs if run.sequence.phase is Phase.PREFILL]
        started = self._clock()
        try:
            if self._speculation is not None:
                self.cells.prepare_rollback(runs)
            self.runner.use_adapters(runs[0].sequence.next_adapters)
            if self.params.backend_sampling:
                self._next_tokens.choose_samplers(runs)
            decoded = self.runner.decode(runs)
        except CONTAINED as error:
            self._recover(runs, error)
            return False
        if not decoded:
            if self._speculation is not None and any(run.draft_tokens for run in runs):
                self._speculation.pause()  # no sequence is preempted for a draft
            elif (ending := self.cells.free_cells(runs, self._clock())) is not None:
                self._end_at_limit(ending, self._clock())
            return False
        self.heartbeat += 1
        all_stay = self._take_results(runs, prefill_runs, self._clock() - started)
        if self.params.check_integrity:
            self.scheduler.check_integrity()
        return all_stay

    def _take_results(self, runs: list[TokenRun], prefill_runs: list[TokenRun], seconds: float) -> bool:
        """Commit the decoded `runs`, including `prefill_runs`, and sample their next tokens. Return False if all cells
        had to be wiped.
        """
        n_prompt = sum([len(e.tokens) for e in prefill_runs]) if prefill_runs else 0
        longest = max([e.at + len(e.tokens) for e in runs])
        self.last_s = seconds
        self.stats.add_decode(self.scheduler.n_active, longest, n_prompt, seconds)
        if self.snapshots.watched:
            self.snapshots.step(runs, n_prompt, seconds)
        is_timed = True
        if self.runner.info.deferred:
            seconds, is_timed = self._timed(runs, seconds)
        if self._speculation is not None and is_timed:
            self._speculation.observe(runs, n_prompt, seconds)
        self.scheduler.commit(runs, seconds, is_timed=is_timed)
        self.cells.decoded(runs)
        if prefill_runs:
            now = self._clock()
            for run in prefill_runs:
                self._report_progress(run.sequence, now)
        not_finite = self._next_tokens.take([e for e in runs if e.n_outputs])
        if not_finite:
            self._wipe(not_finite)
        return not not_finite

    def _recover(self, runs: list[TokenRun], error: Exception) -> None:
        """Remove cells that a rejected batch may have left. A sequence that was alone in it fails. Several sequences
        are quarantined until they have computed their tokens of the batch, except drafts: each alone in its steps. So
        none fails because of others.

        If the model's memory cannot be truncated, or a medium was decoded in part, a sequence is preempted and
        recomputed, at most `MAX_FAULTS` times.
        """
        log.error(
            "a decode of %d sequences failed, each is tried by itself; a smaller n_batch takes less memory: %r",
            *(len(runs), error),
            extra=log_fields(*(run.sequence.request for run in runs)),
        )
        for run in runs:
            sequence, slot = run.sequence, run.sequence.slot
            if slot is None:  # another choice of its request has failed
                continue
            n = len(slot.tokens)
            is_truncated = self.cells.truncate(slot, n)
            if not is_truncated:
                self.cells.clear(slot)
            is_restored = len(slot.tokens) == n
            sequence.n_faults += not is_restored
            if (is_restored and len(runs) == 1) or sequence.n_faults > MAX_FAULTS:
                self._requests.fail(sequence.ticket, error)
                continue
            end = run.at + len(run.tokens) - len(run.draft_tokens)
            sequence.quarantined_until = max(sequence.quarantined_until, end)
            if not is_truncated:
                self.scheduler.requeue(sequence, self._clock())

    def _wipe(self, not_finite: list[Sequence]) -> None:
        """Recover from non-finite logits of the sequences `not_finite`. The cause is their own computation (an extreme
        LoRA scale) or a value that another sequence left in the cells: 0 times NaN is NaN.

        All cells are zeroed. Decoding sequences with finite logits resume from their states; others are recomputed in
        quarantine, where each run shows only its own faults. A sequence whose logits are still not finite after some
        recomputations fails, one that an adapter computes after a single one.
        """
        log.error(
            "the logits of %d sequences are not numbers, every cell is wiped; check LoRA scales and --check-tensors",
            len(not_finite),
            extra=log_fields(*(sequence.request for sequence in not_finite)),
        )
        now = self._clock()
        max_faults = MAX_NOT_FINITE if self.runner.adapters else MAX_FAULTS
        for sequence in list(self.scheduler.active()):
            slot = sequence.slot
            if slot is None:  # another choice of its request has failed
                continue
            if sequence not in not_finite and sequence.phase is Phase.DECODE:
                self.cells.preempt(sequence, now)
                continue
            uses_adapters = bool(sequence.next_adapters)
            sequence.n_faults += uses_adapters or sequence in not_finite
            if sequence.n_faults > (1 if uses_adapters else max_faults):
                self._requests.fail(sequence.ticket, NotNumbers())
            else:
                self.scheduler.requeue(sequence, now)
                sequence.quarantined_until = len(sequence.content) + 1
            self.cells.clear(slot)
        for slot in self.scheduler.slots:
            self.cells.evict(slot, now)
        for sequence in not_finite:
            self.cells.drop_cached(sequence)
        self.runner.wipe()

    def _timed(self, runs: list[TokenRun], seconds: float) -> tuple[float, bool]:
        """Return the duration of `runs` and whether it is known. A decode without outputs returns before the device is
        done, so the time until the next decode with outputs is divided by token count.
        """
        n_before, before_s = self._untimed
        n_tokens = sum([len(e.tokens) for e in runs])
        if not any(e.n_outputs for e in runs):
            self._untimed = n_before + n_tokens, before_s + seconds
            return seconds, False
        self._untimed = 0, 0.0
        return (before_s + seconds) * n_tokens / (n_before + n_tokens), True

    def _place(self) -> None:
        if (victim := self.scheduler.background_victim()) is not None:
            self.cells.preempt(victim, self._clock())
        while (placement := self.scheduler.place(self._clock())) is not None:
            sequence = placement.sequence
            now = self._clock()
            try:
                first = sequence.n_cached < 0
                if first:
                    sequence.origin = origin_of(placement, self.scheduler.slots)
                self.cells.prepare(placement, now)
                self.scheduler.occupy(placement, now)
                self._requests.request_media(sequence)
                if first:
                    sequence.placement_s = self._clock() - now
                    self.stats.queue_time.observe(now - sequence.ticket.waits_since)
                    self._next_tokens.begin(sequence)
                    self._report_progress(sequence, now)
            except Exception as error:  # noqa: BLE001 - `Requests.fail` logs unexpected errors
                if placement.slot.idle:
                    self.cells.clear(placement.slot)
                self._requests.fail(sequence.ticket, error)
        self.cells.start_reading()

    def _relocate(self) -> None:
        """Relocate sequences as long as that saves time. Slots that commands wait for do not take part."""
        awaited = frozenset([index for index, *_ in self._commands.copy()])
        while (slots := self.scheduler.relocation(awaited)) is not None:
            self._requests.post()
            self.cells.relocate(*slots, self._clock())

    def _shift(self) -> None:
        """Shift the contexts that are full."""
        for sequence in list(self.scheduler.active()):
            if sequence.phase is Phase.DECODE and sequence.n_computed + 1 >= self.runner.info.n_ctx_seq:
                vocab = self.runner.vocab
                keep, discard = shift_sizes(sequence, self.runner.info.n_ctx_seq, add_bos=vocab.add_bos)
                log.debug("context shift: %d tokens kept at the start, %d dropped", keep, discard)
                slot = sequence.held
                self._requests.post()
                if not discard:
                    self._end_at_limit(sequence, self._clock())
                    continue
                try:
                    self.cells.shift(sequence, keep, discard, self._clock())
                except Exception as error:  # noqa: BLE001 - as above
                    self._requests.fail(sequence.ticket, error)
                    self.cells.clear(slot)  # the state of the cells is unknown after a fault

    def _end_at_limit(self, sequence: Sequence, now: float) -> None:
        """End a sequence for whose next token there is no cell."""
        if sequence.output:
            self._next_tokens.finish(sequence, sequence.held.id, FinishReason.LIMIT, now, context_full=True)
        else:
            self._requests.fail(sequence.ticket, ContextExceeded(len(sequence.request.prompt), sequence.n_computed))

    def _report_progress(self, sequence: Sequence, now: float) -> None:
        if sequence.request.return_progress and not sequence.output:
            total = len(sequence.request.prompt)
            elapsed_ms = (now - sequence.placed_at) * 1e3
            done = min(sequence.n_computed, total)
            self._requests.emit(sequence.ticket, Progress(sequence.index, total, sequence.n_cached, done, elapsed_ms))
