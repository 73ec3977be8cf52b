"""The corpus: an endless stream of samples, by ability, each side of the split from its own phrasings."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from .anytools import any_quoting, any_tools
from .chitchat import small_talk
from .facts import fact
from .infill import infill
from .llamapool import llamapool
from .quoting import quoting
from .recall import recall
from .sample import Infill, NothingHeldOut, Sample, Split, after
from .stories import story
from .systems import plain_system, system
from .tools import tool_use
from .tooltalk import tool_talk
from .unknown import unknown

Maker = Callable[[Random, Split], Sample]

# maker and share of the samples. "broad" is the first stage's and draws the cases to score; the others train on.
MIXES: dict[str, tuple[tuple[Maker, float], ...]] = {
    "broad": (
        (fact, 30),
        (small_talk, 13),
        (llamapool, 8),
        (tool_use, 30),
        (system, 11),
        (recall, 10),
        (story, 1.5),
        (unknown, 3),
    ),
    "talk": (
        (fact, 15),
        (small_talk, 13),
        (llamapool, 5),
        (tool_use, 16),
        (tool_talk, 20),
        (quoting, 7),
        (system, 17),
        (recall, 11),
        (story, 5),
        (unknown, 5),
    ),
    "any": (
        (fact, 8),
        (small_talk, 10),
        (llamapool, 4),
        (tool_use, 13),
        (tool_talk, 9),
        (any_tools, 32),
        (quoting, 3),
        (any_quoting, 13),
        (system, 13),
        (recall, 6),
        (story, 3.5),
        (unknown, 3.5),
    ),
}
_INFILL_SHARE = {"broad": 0.06, "talk": 0.06, "any": 0.08}
_LONG_SHARE = 0.001
_THINKING_SHARE = {"train": 0.24, "test": 0.18}


def sample(rng: Random, split: Split, mix: str = "broad") -> Sample | Infill:
    """One sample of the whole mixture."""
    if rng.random() < _INFILL_SHARE[mix]:
        return infill(rng, split)
    makers, shares = zip(*MIXES[mix], strict=True)
    made = rng.choices(makers, shares)[0](rng, split)
    if rng.random() < _THINKING_SHARE[split] and made.turns[-1].thought:
        made = replace(made, thinking=True)
    plain = made.turns[0].role != "system"
    if plain and not made.tools and rng.random() < 0.3:
        for _ in range(rng.choice((1, 1, 2, 3))):
            made = after(rng.choice((small_talk, fact, llamapool))(rng, split).turns, made)
    if plain and rng.random() < 0.15:
        made = plain_system(rng, made)
    return made


def long_talk(rng: Random, split: Split) -> Sample:
    """A conversation of up to 4,000 tokens, so that late positions are trained too."""
    talk = fact(rng, split)
    for _ in range(rng.randint(20, 150)):
        talk = after(rng.choice((small_talk, fact, llamapool))(rng, split).turns, talk)
    return talk


def stream(seed: int, split: Split = "train", mix: str = "broad") -> Iterator[Sample | Infill]:
    """Samples without end, the same for the same seed."""
    rng = Random(seed)
    while True:
        is_long = split == "train" and rng.random() < _LONG_SHARE
        try:
            made = long_talk(rng, split) if is_long else sample(rng, split, mix)
        except NothingHeldOut:  # of the test's side alone: another one is drawn
            continue
        yield made


def any_tools_stream(seed: int, split: Split) -> Iterator[Sample]:
    """Conversations over tools of any kind alone, without end."""
    rng = Random(seed)
    while True:
        try:
            made = any_tools(rng, split)
        except NothingHeldOut:
            continue
        yield made


__all__ = ["MIXES", "Infill", "Maker", "Sample", "Split", "any_tools_stream", "sample", "stream"]
