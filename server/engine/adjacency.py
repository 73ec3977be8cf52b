"""Adjacent slots: how often a step evaluates the graph, the price of an idle slot that is apart from running ones, and
relocations. Pure.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. So running sequences are brought together, and the runner pads runs of similar length
(`server.llama.context.batch`).
"""

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.engine.cache.move_budget import MoveBudget
from server.engine.cache.prefix_cache import StateCache
from server.engine.runner_api import RunnerInfo
from server.engine.sequence import Phase, Sequence, Slot


def n_runs(ids: AbstractSet[int]) -> int:
    """Return the number of runs of consecutive ids, which is the number of evaluations for one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_runs(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of runs of `others`: 1 if separate, 0 at the end of a run, -1 between two
    runs.
    """
    return 1 - (seq - 1 in others) - (seq + 1 in others)


@dataclass(eq=False)
class Adjacency:
    """Keeps the running sequences of one instance in adjacent slots.

    ``has_changed``: slots in use have changed since the last search for a relocation.
    """

    _slots: list[Slot]
    _info: RunnerInfo
    _ram: StateCache
    _moves: MoveBudget
    has_changed: bool = False

    @property
    def _running(self) -> AbstractSet[int]:
        return {slot.id for slot in self._slots if not slot.idle}

    @property
    def _evaluation_s(self) -> float:
        """Seconds of an additional evaluation; never more than a measured step."""
        return min(self._info.evaluation_s, self._moves.step_s or math.inf)

    def price(self) -> Callable[[Slot], tuple[float, int]]:
        """Return the price of each idle slot for `first_to_evict`.

        It is the cost of more evaluations per step in the unit of eviction priority: prefill tokens per second.
        """
        running, moves = self._running, self._moves
        evaluation = moves.computed * self._evaluation_s / moves.step_s if moves.step_s else 0.0

        def price(slot: Slot) -> tuple[float, int]:
            n = n_more_runs(slot.id, running)
            return n * evaluation, n

        return price

    def is_split(self) -> bool:
        """Return whether running sequences may be apart although they would share evaluations."""
        self.has_changed = self.has_changed and n_runs(self._running) > 1
        return self.has_changed and self._info.evaluation_s > 0

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        """Return (source, target) of the relocation that saves the most time, or None.

        A sequence in `source` moves to the idle slot `target` so that steps need fewer evaluations. Slots in `fixed`,
        and slots requested by id, do not take part. A decoding sequence is expected to generate as many tokens again as
        it has generated, but not past its limit. The contents of `target` are lost, or moved. The copy takes at most
        half of a step, because the other sequences wait for it in addition to their step.
        """
        running, moves, evaluation_s = self._running, self._moves, self._evaluation_s
        longest_s = moves.target_s / 2 - moves.spent_s
        movable = [
            slot
            for slot in self._slots
            if slot.id not in fixed and not any(s and s.request.id_slot >= 0 for s in (slot.sequence, slot.last))
        ]
        targets = [(slot, moves.lost_s(len(slot.tokens), is_kept=self._ram.offloads)) for slot in movable if slot.idle]
        best, most_s = None, 0.0
        for source in movable:
            n_less, take_s = n_more_runs(source.id, running), moves.take_s(len(source.tokens))
            # a sequence between two others would split them, which saves nothing
            if (s := source.sequence) is None or s.phase is not Phase.DECODE or n_less < 0 or take_s > longest_s:
                continue
            others, saves_s = running - {source.id}, _steps_left(s) * evaluation_s
            for target, lost_s in targets:
                saved_s = (n_less - n_more_runs(target.id, others)) * saves_s - take_s - lost_s
                if saved_s > most_s:
                    best, most_s = (source, target), saved_s
        return best


def _steps_left(sequence: Sequence) -> int:
    n, most = len(sequence.output), sequence.ticket.request.max_tokens
    return n if most < 0 else min(n, most - n)
