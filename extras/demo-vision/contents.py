"""Labels of the contents of images and audio, and the embedding position (slot) of each label."""

from random import Random

from audio import PITCHES, Sound
from images import ALPHABET, COLOURS, KINDS, MAX_COUNT, N_LETTERS, SHAPES, UNDRAWN, Picture, any_word

# The first N_LETTERS embeddings are the letters of a word. These are the other embeddings with labels.
SLOTS = {"kind": 6, "colour": 7, "shape": 8, "count": 9, "digit": 10}
N_SLOTS = 11
SIZES = {"kind": len(KINDS), "colour": len(COLOURS), "shape": len(SHAPES), "count": 5, "digit": 10}
HEARD_SLOTS = {"digit": 0, "pitch": 1, "count": 2}
HEARD_SIZES = {"digit": 10, "pitch": len(PITCHES), "count": 4}
ABSENT = len(ALPHABET)  # no letter, since the word is shorter
IGNORED = -100  # no label: the image is no word, has no digit, ...
OTHERS = ("shapes",) * 6 + ("digit",) * 2 + ("bars",) * 2 + ("rising", "falling")


def labels(seen: Picture | Sound) -> dict[str, int]:
    """Return the label of each slot, or IGNORED."""
    if isinstance(seen, Sound):
        return {
            "digit": seen.digit if seen.digit >= 0 else IGNORED,
            "pitch": PITCHES.index(seen.pitch) if seen.pitch else IGNORED,
            "count": seen.count - 1 if seen.count else IGNORED,
        }
    return {
        "kind": KINDS.index(seen.kind),
        "colour": list(COLOURS).index(seen.colour),
        "shape": SHAPES.index(seen.shape) if seen.shape else IGNORED,
        "count": seen.count - 1 if seen.count else IGNORED,
        "digit": seen.digit if seen.digit >= 0 else IGNORED,
    }


def letter_labels(picture: Picture) -> list[int]:
    """Return the letters' numbers, then ABSENT; IGNORED if the image is no word."""
    if picture.kind != "word":
        return [IGNORED] * N_LETTERS
    found = [ALPHABET.index(letter) for letter in picture.word.lower()]
    return found + [ABSENT] * (N_LETTERS - len(found))


def undrawn(rng: Random) -> Picture:
    """Return the random contents of an image, without pixels."""
    kind = rng.choice(("shapes", "shapes", "word", rng.choice(OTHERS)))  # shapes have the most combinations
    colour = rng.choice(tuple(COLOURS))
    if kind == "shapes":
        count = 1 if rng.random() < 0.4 else rng.randint(1, MAX_COUNT)
        return Picture(UNDRAWN, kind, colour, shape=rng.choice(SHAPES), count=count)
    if kind == "digit":
        return Picture(UNDRAWN, kind, colour, digit=rng.randrange(10))
    if kind == "bars":
        return Picture(UNDRAWN, kind, colour, count=rng.randint(2, 5))
    return Picture(UNDRAWN, kind, colour, word=any_word(rng, "train") if kind == "word" else "")


def unheard(rng: Random) -> Sound:
    """Return the random contents of audio, without samples."""
    if rng.random() < 0.5:
        return Sound(None, digit=rng.randrange(10))
    return Sound(None, count=rng.randint(1, 4), pitch=rng.choice(PITCHES))
