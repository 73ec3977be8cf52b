"""Words written as JSON and read from it: how a word is spelt behind a quotation mark. For training alone.

A word is other tokens behind a space than behind a quotation mark; copying an argument into a call needs both.
"""

import json
from random import Random

from . import words
from .sample import Sample, Split, exchange, fresh
from .toolkinds import ROOMS

_WORDS = (
    ROOMS,
    words.THINGS,
    words.FOODS,
    words.HOBBIES,
    words.COLOURS,
    words.PETS,
    words.JOBS,
    words.LANGUAGES,
    words.DAYS,
    words.MONTHS,
    words.NAMES,
    words.CITIES,
    tuple(words.ANIMALS),
    tuple(words.OPPOSITES),
    tuple(words.CAPITALS),
)
_KEYS = words.words_of("name city place word text thing title room user day to from first second key value what")
_LISTS = (
    "Write these words as a JSON list: {0}.",
    "Make a JSON list of {0}.",
    "JSON list: {0}.",
    "Put these in a JSON list: {0}.",
)
_OBJECTS = ("Write this as JSON: {0}.", "Make a JSON object: {0}.", "As JSON: {0}.", "Put this in JSON: {0}.")
_QUOTES = ("Put {0} in quotes.", "Write {0} in quotes.", "Quote {0}.", "Quote the word {0}.")
_READS = ("Read this to me: {0}", "What does this say? {0}", "Say this in words: {0}")


def _value(rng: Random, split: Split) -> str | int:
    way = rng.random()
    if way < 0.45:
        word = fresh(rng, split, words.made_up) if rng.random() < 0.65 else words.made_up_on_a_vowel(rng).capitalize()
        return word.lower() if rng.random() < 0.4 else word
    if way < 0.55:
        return rng.randint(2, 999)
    if way < 0.6:
        return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return rng.choice(rng.choice(_WORDS))


def _keys(rng: Random, split: Split, n: int) -> list[str]:
    keys: list[str] = []
    while len(keys) < n:
        key = rng.choice(_KEYS) if rng.random() < 0.5 else fresh(rng, split, words.made_up).lower()
        if key not in keys:
            keys.append(key)
    return keys


def quoting(rng: Random, split: Split) -> Sample:
    """Words as a JSON list or object, in quotation marks, or read from JSON."""
    values = [_value(rng, split) for _ in range(rng.choice((1, 2, 3, 4)))]
    said = [str(value) for value in values]
    way = rng.random()
    if way < 0.4:
        question, answer = rng.choice(_LISTS).format(", ".join(said)), json.dumps(values)
    elif way < 0.75:
        keys = _keys(rng, split, len(values))
        listed = ", ".join(f"{key} {word}" for key, word in zip(keys, said, strict=True))
        question, answer = rng.choice(_OBJECTS).format(listed), json.dumps(dict(zip(keys, values, strict=True)))
    elif way < 0.85:
        question, answer = rng.choice(_QUOTES).format(" and ".join(said)), " and ".join(f'"{word}"' for word in said)
    else:
        keys = _keys(rng, split, len(values))
        question = rng.choice(_READS).format(json.dumps(dict(zip(keys, values, strict=True))))
        answer = " ".join(f"The {key} is {word}." for key, word in zip(keys, said, strict=True))
    return exchange("quoting", question, answer, "I write the words down.")
