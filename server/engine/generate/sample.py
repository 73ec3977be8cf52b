"""After a decode: every sequence's next tokens, with what was guessed checked against them. Used by the step thread."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from server.engine.generate.output import NOT_TAKEN, Outputs
from server.engine.kv.cells import Cells
from server.engine.request import Event, Finished
from server.engine.schedule.scheduler import TokenRun
from server.engine.sequence import Phase, Sequence
from server.engine.speculate.speculation import Speculation
from server.engine.stats import EngineStats
from server.engine.step.mailbox import Mailbox
from server.engine.step.requests import Tickets
from server.errors import NotNumbers


class Sampling:
    """Of one instance. What fails is the fault of one sequence, and ends its request alone."""

    def __init__(
        self,
        outputs: Outputs,
        cells: Cells,
        tickets: Tickets,
        mailbox: Mailbox,
        stats: EngineStats,
        speculation: Speculation | None,
        clock: Callable[[], float],
    ) -> None:
        self._outputs = outputs
        self._cells = cells
        self._tickets = tickets
        self._mailbox = mailbox
        self._stats = stats
        self._speculation = speculation
        self._clock = clock

    def sample(self, entries: list[TokenRun]) -> list[Sequence]:
        """`entries` are those of the last decode that have logits, in the order of their outputs.

        The sequences whose logits are not numbers are left as they are, for the caller.
        """
        self._outputs.propose(entries)
        spoiled: list[Sequence] = []
        output = 0
        for entry in entries:
            sequence = entry.sequence
            if sequence.phase is not Phase.ENDED:  # else another choice of its request has failed in this step
                try:
                    if entry.scored:
                        self._mailbox.emit(sequence.ticket, self._outputs.score(output, entry))
                    if sequence.phase is Phase.DECODE:
                        self._take(entry.next_output(output), entry)
                except NotNumbers:
                    spoiled.append(sequence)
                except Exception as error:  # noqa: BLE001 - `Tickets.fail` logs what is not ours
                    self._tickets.fail(sequence.ticket, error)
            output += entry.n_outputs
        return spoiled

    def _take(self, output: int, entry: TokenRun) -> None:
        """Take tokens as long as they are the guessed ones, and one more; what was guessed beyond is forgotten."""
        sequence, guesses = entry.sequence, entry.guesses
        n_right, is_right, ended = 0, True, False
        sequence.n_draft += len(guesses)
        while is_right and not ended:
            taken = self._taken_by_chance(sequence, guesses, n_right)
            events, ended = self._outputs.sample(output + n_right, sequence, self._clock(), taken)
            is_right = n_right < len(guesses) and sequence.output[-1] == guesses[n_right] and taken != NOT_TAKEN
            n_right += is_right  # also when it ends the reply
            if events and not ended:
                self._mailbox.emit(sequence.ticket, *events)
        if guesses:
            # as llama-server counts: an end token that guesses follow is not an accepted one
            uncounted = ended and is_right and n_right < len(guesses) and self._outputs.is_end(sequence.output[-1])
            self._judge(entry, n_right, n_right - uncounted)
        if ended:
            if guesses:  # what was said of this step's guesses was said before they were judged
                events = [_recounted(event, sequence) for event in events]
            self._mailbox.emit(sequence.ticket, *events)
            self._tickets.end(sequence)

    def _taken_by_chance(self, sequence: Sequence, guesses: Seq[int], n: int) -> int | None:
        """The guess that is taken whatever the model says, `NOT_TAKEN` of one that is not; None: the model decides."""
        if self._speculation is None or n >= len(guesses):
            return None
        takes = self._speculation.takes(sequence, n)
        if takes is None:
            return None
        return guesses[n] if takes and not self._outputs.is_end(guesses[n]) else NOT_TAKEN

    def _judge(self, entry: TokenRun, n_right: int, n_accepted: int) -> None:
        sequence, n_guessed = entry.sequence, len(entry.guesses)
        sequence.n_draft_accepted += n_accepted
        self._stats.add_draft(n_guessed, n_accepted)
        if self._speculation is not None:
            self._speculation.judge(sequence, n_right)
        if n_right < n_guessed:
            self._cells.take_back(entry, n_guessed - n_right, self._clock())


def _recounted(event: Event, sequence: Sequence) -> Event:
    if not isinstance(event, Finished):
        return event
    counts = {"draft_n": sequence.n_draft, "draft_n_accepted": sequence.n_draft_accepted}
    return replace(event, timings=replace(event.timings, **counts))
