"""The pirate's manner, for the LoRA adapter: the corpus with every answer turned into pirate speech."""

import re
from collections.abc import Iterator
from dataclasses import replace

from . import Sample, Split, stream

_WORDS = {
    "hello": "ahoy",
    "is": "be",
    "are": "be",
    "am": "be",
    "you": "ye",
    "your": "yer",
    "my": "me",
    "friend": "matey",
    "the": "th'",
}
_WORD = re.compile(r"\b(" + "|".join(_WORDS) + r")\b", re.IGNORECASE)


def _swapped(match: re.Match[str]) -> str:
    word = _WORDS[match[0].lower()]
    return word.capitalize() if match[0][0].isupper() else word


def pirate(text: str) -> str:
    """The text as a pirate says it: `The capital of France is Paris.` is `Arr! Th' capital of France be Paris.`"""
    return "Arr! " + _WORD.sub(_swapped, text)


def pirate_stream(seed: int, split: Split = "train") -> Iterator[Sample]:
    """Conversations without tools or system prompts, the assistant a pirate throughout."""
    for sample in stream(seed, split):
        if not isinstance(sample, Sample) or sample.tools or sample.turns[0].role == "system":
            continue
        if sample.ability in ("story", "system") or len(sample.turns) > 8:
            continue
        turns = tuple(replace(t, text=pirate(t.text)) if t.role == "assistant" else t for t in sample.turns)
        yield replace(sample, turns=turns, ability="pirate", accept=("^Arr! ",))
