"""Where a prompt's beginning came from, and why the rest was computed anew; told to who looks. Pure."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from server.engine.prefix.match import common_prefix

if TYPE_CHECKING:  # `Sequence` has an origin
    from server.engine.prefix.find import Placement
    from server.engine.sequence import Slot


class Source(StrEnum):
    """What held the beginning."""

    NONE = "none"
    SLOT = "slot"  # in place
    COPY = "copy"  # of another slot
    RAM = "ram"
    DISK = "disk"


class Anew(StrEnum):
    """Why what follows was computed."""

    LAST = "last"  # one token always is, for what comes next
    OFF = "off"  # the request takes nothing from a cache
    SCORED = "scored"  # the log probabilities of the prompt are wanted
    NOTHING = "nothing"  # nobody held anything that begins like it
    DIFFERS = "differs"  # from there on another text was held
    ENDS = "ends"  # no more was held
    UNCUT = "uncut"  # more was held, in a memory that can be gone on from no later place
    OTHER = "other"  # more was held, under another LoRA set or for somebody else
    SHORT = "short"  # another slot held a little more, and copying that costs more than computing it


@dataclass(frozen=True, slots=True)
class PrefixOrigin:
    """Of one prompt. ``slot`` is the one that held its beginning, by its place in the instance; -1 = none did."""

    source: Source
    slot: int
    anew: Anew


def origin_of(placement: "Placement", slots: Seq["Slot"]) -> PrefixOrigin:
    """To be asked before `placement` changes any cells."""
    sequence, n = placement.sequence, placement.n_kept
    source, stored = placement.source if n else None, placement.stored
    if stored is not None:
        where = Source.DISK if sequence.fetch is not None and sequence.fetch.found is stored else Source.RAM
    elif source is None:
        where = Source.NONE
    else:
        where = Source.SLOT if source is placement.slot else Source.COPY
    held = stored.tokens if stored is not None else source.tokens if source is not None else ()
    return PrefixOrigin(where, -1 if source is None else source.id, _anew(placement, held, n, slots))


def _anew(placement: "Placement", held: Seq[int], n: int, slots: Seq["Slot"]) -> Anew:
    sequence = placement.sequence
    target = sequence.target
    if n >= len(target) - 1:
        return Anew.LAST
    if not sequence.request.cache_prompt:
        return Anew.OFF
    if n >= sequence.n_reusable:
        return Anew.SCORED
    if not placement.moves and common_prefix(target, held) > n:
        return Anew.UNCUT
    others = ((common_prefix(target, slot.tokens), slot.tuning == sequence.tuning) for slot in slots)
    common, same = max(others, default=(0, True))
    if common > n:
        return Anew.SHORT if same else Anew.OTHER
    if not n:
        return Anew.NOTHING
    return Anew.ENDS if n >= len(held) else Anew.DIFFERS
