"""Questions about images and audio, and their answers.

Nearly all answers begin with "It is". A model that has not learned to choose between "It says" and "There are" for such
questions mixes them for new wordings ("Itere are four"), although it recognizes the contents.
"""

from dataclasses import dataclass
from itertools import product
from random import Random
from re import split
from zlib import crc32

from audio import Sound
from images import Picture

NUMBERS = ("no", "one", "two", "three", "four", "five")

# Patterns: [a|b] is either. {s} is the shape, {S} its plural.
_PATTERNS = {
    "colour": (
        "[What|Which] [colour|color] is [it|this|the {s}|this {s}]?",
        "[Tell me|Say|Name] [the|its] [colour|color].",
        "[What is|What's] the [colour|color] of [it|the {s}|this {s}]?",
    ),
    "colours": (
        "[What|Which] [colour|color] are [they|these|the {S}|these {S}]?",
        "[Tell me|Say|Name] [the|their] [colour|color].",
        "[What is|What's] the [colour|color] of [them|the {S}|these {S}]?",
    ),
    "shape": (
        "[What|Which] shape is [it|this|in the picture|that]?",
        "[What|Which] shape do you see?",
        "[Tell me|Say|Name] the shape.",
        "[What is|What's] the shape [here|in the picture|of this]?",
    ),
    "count": (
        "How many [{S}|shapes] are [there|in the picture|here|shown]?",
        "How many [{S}|shapes] [do you see|can you see|does the picture show]?",
        "Count the [{S}|shapes][.| in the picture.]",
    ),
    "digit": (
        "[What|Which] [digit|number] is [it|this|shown|that|in the picture]?",
        "[What|Which] [digit|number] do you see?",
        "[Tell me|Say|Read|Name] the [digit|number].",
    ),
    "word": (
        "[What|Which] word is [it|this|shown|that|in the picture]?",
        "[What|Which] word do you see?",
        "What does [it|this|the picture] say?",
        "[Read|Tell me|Say] the word[.| in the picture.]",
        "What is written [here|there|in the picture]?",
    ),
    "bars": ("How many bars [are there|do you see|does it have|has the chart|are in the chart]?", "Count the bars."),
    "trend": (
        "Does the line [rise or fall|go up or down]?",
        "[What|Which] way does the line go?",
        "Is the line [rising or falling|going up or down]?",
    ),
    "heard digit": (
        "[What|Which] [digit|number] [do you hear|is spoken|is said|can you hear]?",
        "[What|Which] [digit|number] is [it|this|that]?",
        "[Tell me|Say|Name] the [digit|number].",
        "What does [he|she|the voice] say?",
    ),
    "tones": (
        "How many [tones|sounds|beeps] are [there|in it]?",
        "How many [tones|sounds|beeps] [do you hear|can you hear|are played]?",
        "Count the [tones|sounds|beeps].",
    ),
    "pitch": (
        "Is the [tone|sound] [high or low|low or high]?",
        "How high is the [tone|sound]?",
        "[Are the tones|Is it|Is this] [high or low|low or high]?",
    ),
    "hear": (
        "What [do you hear|is this|is it|can you hear|is in the recording]?",
        "[Describe|Describe this|Describe the] [sound|recording].",
        "What is to be heard?",
    ),
    "see": (
        "What [do you see|is this|is it|is in the picture|does the picture show|can you see]?",
        "[Describe|Describe this|Describe the] picture.",
        "What is [shown|in this picture]?",
    ),
}


def _spelt_out(pattern: str) -> list[str]:
    parts = [part.split("|") if i % 2 else [part] for i, part in enumerate(split(r"[\[\]]", pattern))]
    return ["".join(choice) for choice in product(*parts)]


def _by_split() -> dict[str, dict[str, list[str]]]:
    """Return the phrasings by ability and split. About one in six, by its checksum, is for tests only."""
    found: dict[str, dict[str, list[str]]] = {}
    for ability, patterns in _PATTERNS.items():
        every = [text for pattern in patterns for text in _spelt_out(pattern)]
        test = [text for text in every if crc32(text.encode()) % 6 == 0] or every[:1]
        found[ability] = {"test": test, "train": [text for text in every if text not in test]}
    return found


PHRASINGS = _by_split()


@dataclass(frozen=True)
class Question:
    """A question about an image or audio. wanted: the word that a right answer contains."""

    ability: str
    text: str
    answer: str
    wanted: str


def _plural(shape: str) -> str:
    return shape + ("es" if shape == "cross" else "s")


def _main(picture: Picture) -> str:
    """Return the ability that answers an open question: a model this small cannot choose among several."""
    return {"shapes": "shape", "rising": "trend", "falling": "trend"}.get(picture.kind, picture.kind)


def abilities(picture: Picture | Sound) -> tuple[str, ...]:
    """Return the abilities for questions about an image or audio."""
    if isinstance(picture, Sound):
        return ("heard digit", "heard digit", "hear") if picture.digit >= 0 else ("tones", "pitch", "hear")
    own = {
        "shapes": ("colour", "shape", "count", "count"),
        "digit": ("digit", "digit", "colour"),
        "word": ("word", "word", "word", "colour"),
        "bars": ("bars",),
        "rising": ("trend",),
        "falling": ("trend",),
    }[picture.kind]
    return (*own, "see")


def _heard(sound: Sound, ability: str, text: str) -> Question:
    heard = NUMBERS[sound.count] if ability == "tones" else sound.pitch
    wanted = str(sound.digit) if sound.digit >= 0 else heard
    return Question(ability, text, f"It is {wanted}.", wanted)


def question(picture: Picture | Sound, ability: str, rng: Random, part: str = "train") -> Question:
    """Return a question for an ability, with a phrasing of the split `part`."""
    if isinstance(picture, Sound):
        return _heard(picture, ability, rng.choice(PHRASINGS[ability][part]))
    many = picture.count > 1
    shape = picture.shape or picture.kind
    phrasings = PHRASINGS["colours" if ability == "colour" and many else ability][part]
    text = rng.choice(phrasings).replace("{s}", shape).replace("{S}", _plural(shape))
    shown = _main(picture) if ability == "see" else ability
    wanted = {
        "colour": picture.colour,
        "shape": picture.shape,
        "count": NUMBERS[picture.count],
        "digit": str(picture.digit),
        "word": picture.word.lower(),
        "bars": NUMBERS[picture.count],
        "trend": picture.kind,
    }[shown]
    if shown == "count":
        return Question(ability, text, f"There {'are' if many else 'is'} {wanted}.", wanted)
    return Question(ability, text, f"It is {'a ' if shown == 'shape' else ''}{wanted}.", wanted)
