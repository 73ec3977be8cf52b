"""After a decode: every sequence's next tokens, with what was guessed checked against them. Used by the step thread."""

from collections.abc import Callable

from server.engine.kv import Cells
from server.engine.mailbox import Mailbox
from server.engine.output import Outputs
from server.engine.scheduler import Entry
from server.engine.sequence import Phase, Sequence, Slot
from server.engine.speculation.speculation import Speculation
from server.engine.stats import EngineStats
from server.engine.tickets import Tickets
from server.errors import InternalError


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

    def sample(self, entries: list[Entry]) -> None:
        """`entries` are those of the last decode that have logits, in the order of their outputs."""
        self._outputs.propose(entries)
        output = 0
        for entry in entries:
            sequence = entry.sequence
            if sequence.phase is Phase.DECODE:  # else another choice of its request has failed in this step
                try:
                    self._take(output, entry)
                except Exception as error:  # noqa: BLE001 - `Tickets.fail` logs what is not ours
                    self._tickets.fail(sequence.ticket, error)
            output += entry.n_outputs

    def _take(self, output: int, entry: Entry) -> None:
        """Take tokens as long as they are the guessed ones, and one more; what was guessed beyond is forgotten."""
        sequence, guesses = entry.sequence, entry.tokens[1:] if entry.all_logits else []
        slot, taken, ended = sequence.slot, 0, False
        assert slot is not None
        for taken in range(len(guesses) + 1):
            events, ended = self._outputs.sample(output + taken, sequence, self._clock())
            if events:
                self._mailbox.emit(sequence.ticket, *events)
            if ended or taken == len(guesses) or sequence.output[-1] != guesses[taken]:
                break
        if guesses:
            self._judge(sequence, slot, len(guesses), taken)
        if ended:
            self._tickets.end(sequence)

    def _judge(self, sequence: Sequence, slot: Slot, n_guessed: int, n_right: int) -> None:
        sequence.n_draft += n_guessed
        sequence.n_draft_accepted += n_right
        self._stats.add_draft(n_guessed, n_right)
        if self._speculation is not None:
            self._speculation.judge(sequence, n_right)
        if n_right < n_guessed and not self._cells.truncate(slot, len(slot.tokens) - n_guessed + n_right):
            raise InternalError("guessed tokens could not be forgotten")
