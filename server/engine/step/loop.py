"""One native context and the thread that owns it. Nothing else calls into the runner."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from server.engine.encode import Encoder
from server.engine.generate.sample import NextTokens
from server.engine.instances import StepThread, has_failed
from server.engine.kv.cells import Cells, shift_sizes
from server.engine.kv.disk_cache import give_up_late, wait_s
from server.engine.kv.ram_cache import StateCache
from server.engine.params import EngineParams
from server.engine.prefix.find import origin_of
from server.engine.request import FinishReason, Progress
from server.engine.runner_api import Runner
from server.engine.schedule.queue import ModelQueue
from server.engine.schedule.scheduler import Scheduler, TokenRun, batches
from server.engine.sequence import Phase, Sequence, Slot
from server.engine.speculate.speculation import speculation
from server.engine.step.faults import Faults
from server.engine.step.mailbox import Command, Mailbox
from server.engine.step.published import Publisher
from server.engine.step.requests import Requests
from server.errors import CONTAINED, ContextExceeded, LlamapoolError, ShuttingDown

log = logging.getLogger(__name__)


class Instance(StepThread):
    """Owns `runner`; takes tickets from `queue`, and runs steps until it is stopped. It is the `number`-th of them."""

    def __init__(
        self,
        runner: Runner,
        params: EngineParams,
        queue: ModelQueue,
        ram: StateCache,
        number: int,
        mailbox: Mailbox,
        clock: Callable[[], float],
        preparing: Callable[[], int],
        encoder: Encoder | None = None,
    ) -> None:
        super().__init__("llamapool-step", number, params, clock, preparing)
        self.runner = runner
        self.scheduler = Scheduler(runner.info, params, queue.accounts, ram, number)
        self._queue = queue
        self._mailbox = mailbox
        first_slot = number * runner.info.n_seq
        self.published = Publisher(self.scheduler, clock, first_slot, lambda: queue.expected(number))
        self._requests = Requests(
            self.scheduler, queue, number, mailbox, self.stats, clock, self.published, encoder, self.wake
        )
        self.cells = Cells(runner, self.scheduler, clock)
        self._shifts = params.context_shift and runner.info.can_shift
        self._speculation = speculation(params, runner, clock)
        self._next_tokens = NextTokens(
            runner, params, first_slot, self.cells, self._requests, mailbox, self.stats, self._speculation, clock
        )
        self._faults = Faults(runner, self.scheduler, self.cells, clock, self._take_results, self._requests.fail)
        self._commands: deque[Command[Any]] = deque()  # appended to on the event loop, done on the step thread
        self._stepped = False
        self._unseen = 0, 0.0  # tokens of decodes that the device may still be at, and what these have taken so far

    @property
    def spec_type(self) -> str:
        """Where guesses come from; llama-server's words."""
        return "none" if self._speculation is None else self.params.asked_spec_type

    def command(self, command: Command[Any]) -> None:
        self._commands.append(command)
        if self.failure:
            self._refuse_commands(has_failed(self.failure))
        self.wake()

    def _refuse_commands(self, error: Exception) -> None:
        for command in self._commands.copy():
            command.refuse(error)

    def give_up(self, reason: str) -> None:
        self.failure = reason
        error = has_failed(reason)
        self._refuse_commands(error)
        self._queue.close(self.number)
        self._mailbox.give_up(error, self._queue.taken_by(self.number))

    # ---- the step thread

    def _free(self) -> None:
        if not self.failure:
            try:
                self.cells.moving.save_all(self._clock())
            except Exception:  # the runner must be closed, whatever happens to its caches
                log.exception(
                    "prompt states could not be saved: they are computed again. A fault: report it with what follows"
                )
            self._end_all(ShuttingDown("model"))  # who came meanwhile
        self.runner.close()

    def _turn(self) -> None:
        if not self._stepped or self._woken.is_set() or self._commands or self._requests.due:
            self._woken.clear()
            self._receive()
        self._stepped = self._step()
        if self.published.watched:
            self.published.publish()
        if self._stepped:
            return
        self._mailbox.post()
        while not self._is_wanted and self.cells.moving.offer():
            pass
        if not self._is_wanted:
            now = self._clock()
            waits = (wait_s(self.scheduler.waiting, now), self._requests.next_look_s(now))
            self._rest(min((s for s in waits if s is not None), default=None))

    def _fail_all(self, error: LlamapoolError) -> None:
        """The cells are no longer trusted."""
        self._requests.fail_all(error)
        for slot in self.scheduler.slots:
            try:
                self.cells.clear(slot)
            except Exception:  # the thread must live: without it, later requests would wait for ever
                log.exception("slot %d could not be cleared. A fault: report it with what follows", slot.id)
        self._mailbox.post()

    def _end_all(self, error: LlamapoolError) -> None:
        self._requests.take_no_more()
        self._requests.fail_all(error)
        self._refuse_commands(error)
        self._mailbox.post()

    def _receive(self) -> None:
        """Take new tickets in, and drop cancelled ones; while nothing runs, wait a moment for those known to come.

        What runs is not held up for them: they join the next step.
        """
        if self._preparing() and not self.scheduler.n_active:
            self._mailbox.post()
            self._gather()
        self._requests.receive()
        self._requests.expire(self._clock())
        if self._commands:
            self._mailbox.post()
            self._carry_out()

    def _carry_out(self) -> None:
        """What is asked of idle slots; what is asked of a busy one waits for it, as in llama-server."""
        for command in self._commands.copy():
            slot = self.scheduler.slots[command.slot]
            if slot.idle:
                command.carry_out(self.cells, slot, self._clock())
                self._commands.remove(command)

    def _step(self) -> bool:
        """Place, plan, decode, sample. False when there is nothing to do.

        What the last step gave is posted when this one's decode is about to begin, since that lets go of the
        interpreter's lock: posted earlier, it would have the event loop wake up only to wait for the lock, or take it
        from this thread in the middle. Before what may take long it is posted at once.
        """
        if self.params.drafts or self.scheduler.waiting or self.cells.moving.busy:
            self._mailbox.post()
        if self.scheduler.waiting:
            self._place()
        changes = self.scheduler.room.changes
        if self.scheduler.may_be_apart:
            self._relocate()
        if self._shifts:
            self._shift()
        self._requests.fail_unencoded()
        entries = self.scheduler.plan(self._speculation.guess if self._speculation is not None else None)
        if not entries:
            self._unseen = 0, 0.0  # the device is done
            has_room = self.cells.moving.busy or self.scheduler.room.changes > changes  # only now, for who waits
            self.scheduler.spent_s = 0.0
            return has_room and bool(self.scheduler.waiting or self._commands)
        for batch in batches(entries, self.runner.info.n_ubatch):
            if not self._decode(batch):
                break
        return True

    def _decode(self, entries: list[TokenRun]) -> bool:
        """Decode what the library takes in one call, and sample. False when that could not be: then there is another
        plan to be made."""
        self._mailbox.post()
        started = self._clock()
        try:
            if self._speculation is not None:
                self.cells.before_guesses(entries)
            self.runner.use_adapters(entries[0].sequence.next_adapters)
            if self.params.backend_sampling:
                self._next_tokens.choose_places(entries)
            decoded = self.runner.decode(entries)
        except CONTAINED as error:
            self._faults.recover(entries, error)
            return False
        if not decoded:
            if self._speculation is not None and any(entry.guesses for entry in entries):
                self._speculation.no_room()  # nobody is parked for the sake of a guess
            else:
                self._make_room(entries)
            return False
        self.pulse += 1
        all_stay = self._take_results(entries, self._clock() - started)
        if self.params.check_integrity:
            self.scheduler.check_integrity()
        return all_stay

    def _take_results(self, entries: list[TokenRun], seconds: float) -> bool:
        """`entries` were decoded: their tokens are in the cells, and those with logits get their next ones.

        False when all cells had to be wiped.
        """
        prompts = [e for e in entries if e.sequence.phase is Phase.PREFILL]
        n_prompt = sum([len(e.tokens) for e in prompts]) if prompts else 0
        longest = max([e.at + len(e.tokens) for e in entries])
        self.stats.add_decode(self.scheduler.n_active, longest, n_prompt, seconds)
        if self.published.watched:
            self.published.step(entries, n_prompt, seconds)
        is_seen = True
        if self.runner.info.deferred:
            seconds, is_seen = self._seen(entries, seconds)
        if n_prompt and is_seen:
            self.scheduler.move_cost.observe_computed(n_prompt, seconds)
        if self._speculation is not None:
            if is_seen:
                self._speculation.observe(entries, n_prompt, seconds)
            if prompts:
                self._speculation.prepare(e.sequence for e in prompts)
        self.scheduler.commit(entries, seconds, is_seen=is_seen)
        self.cells.decoded(entries)
        if prompts:
            now = self._clock()
            for entry in prompts:
                self._report_progress(entry.sequence, now)
        spoiled = self._next_tokens.take([e for e in entries if e.n_outputs])
        if spoiled:
            self._faults.wipe(spoiled)
        return not spoiled

    def _seen(self, entries: list[TokenRun], seconds: float) -> tuple[float, bool]:
        """What `entries` took, and whether that is known: a decode that nothing is read from returns before the device
        is done, and the next ones take so much longer. Of that each has its part, by its tokens."""
        n_before, before_s = self._unseen
        n_tokens = sum([len(e.tokens) for e in entries])
        if not any(e.n_outputs for e in entries):
            self._unseen = n_before + n_tokens, before_s + seconds
            return seconds, False
        self._unseen = 0, 0.0
        return (before_s + seconds) * n_tokens / (n_before + n_tokens), True

    def _place(self) -> None:
        give_up_late(self.scheduler.waiting, self._clock())
        if not self.cells.moving.busy and (preempted := self.scheduler.preempts()) is not None:
            self.stats.n_parked += 1
            self.cells.park(preempted, self._clock())
        while not self.cells.moving.busy and (placement := self.scheduler.place()) is not None:
            sequence = placement.sequence
            now = self._clock()
            try:
                first = sequence.n_cached < 0
                if first:
                    sequence.origin = origin_of(placement, self.scheduler.slots)
                self.cells.prepare(placement, now)
                self.scheduler.occupy(placement, now)
                self._requests.ask_for_media(sequence)
                if first:
                    sequence.placement_s = self._clock() - now
                    self.stats.queue_time.observe(now - sequence.ticket.waits_since)
                    self._next_tokens.begin(sequence)
                    self._report_progress(sequence, now)
            except Exception as error:  # noqa: BLE001 - `Requests.fail` logs what is not ours
                if sequence.slot is None:  # it neither waits nor runs: `fail` would not find it
                    self._requests.end(sequence, "failed")
                if placement.slot.idle:
                    self.cells.clear(placement.slot)
                self._requests.fail(sequence.ticket, error)
        self.cells.moving.start_reading()

    def _relocate(self) -> None:
        """Bring sequences to where steps need fewer evaluations, as long as there is one that it pays for."""
        asked_of = frozenset([command.slot for command in self._commands.copy()])
        while (slots := self.scheduler.relocation(asked_of)) is not None:
            self._mailbox.post()
            self.cells.relocate(*slots, self._clock())

    def _shift(self) -> None:
        """Make room in the contexts that are full."""
        for sequence in list(self.scheduler.active()):
            if sequence.phase is Phase.DECODE and sequence.n_computed + 1 >= self.runner.info.n_ctx_seq:
                vocab = self.runner.vocab
                keep, discard = shift_sizes(sequence, self.runner.info.n_ctx_seq, add_bos=vocab.add_bos)
                log.debug("context shift: %d tokens kept at the beginning, %d dropped", keep, discard)
                slot = sequence.held
                self._mailbox.post()
                if not discard:
                    self._end_at_limit(sequence, self._clock())
                    continue
                try:
                    self.cells.shift(sequence, keep, discard, self._clock())
                except Exception as error:  # noqa: BLE001 - as above
                    self._requests.fail(sequence.ticket, error)
                    self.cells.clear(slot)  # what the fault has left in them is unknown

    def _make_room(self, entries: list[TokenRun]) -> None:
        """The cells ran out; nothing was decoded."""
        victim = self.scheduler.victim(entries)
        now = self._clock()
        if isinstance(victim, Slot):
            self.cells.evict(victim, now)
        elif victim is not None and self.scheduler.n_active > 1:
            self.stats.n_parked += 1
            self.cells.park(victim, now)
        elif victim is not None:
            self._end_at_limit(victim, now)

    def _end_at_limit(self, sequence: Sequence, now: float) -> None:
        """No cell for the next token of the only sequence."""
        if sequence.output:
            self._next_tokens.finish(sequence, sequence.held.id, FinishReason.LIMIT, now, truncated=True)
        else:
            self._requests.fail(sequence.ticket, ContextExceeded(len(sequence.request.prompt), sequence.n_computed))

    def _report_progress(self, sequence: Sequence, now: float) -> None:
        if sequence.request.return_progress and not sequence.output:
            total = len(sequence.request.prompt)
            elapsed_ms = (now - sequence.placed_at) * 1e3
            done = min(sequence.n_computed, total)
            self._mailbox.emit(sequence.ticket, Progress(sequence.index, total, sequence.n_cached, done, elapsed_ms))
