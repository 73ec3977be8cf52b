"""Random training images: shapes, counts, digits, printed words, simple plots."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIZE = 96
SCALE = 2  # drawn at twice the size, then averaged, for smooth edges
COLOURS = {
    "red": (220, 30, 35),
    "orange": (250, 140, 10),
    "yellow": (245, 220, 20),
    "green": (25, 150, 45),
    "blue": (30, 70, 220),
    "purple": (125, 35, 160),
    "pink": (255, 130, 185),
    "brown": (120, 70, 25),
    "black": (10, 10, 10),
    "grey": (128, 128, 128),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
KINDS = ("shapes", "digit", "word", "bars", "rising", "falling")
N_LETTERS = 6
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MAX_COUNT = 4

Point = tuple[float, float]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Picture:
    """An image and its contents. count: of shapes or bars; letters: (letter, left, top, right, bottom) in pixels."""

    pixels: NDArray[np.uint8]
    kind: str
    colour: str
    shape: str = ""
    count: int = 0
    digit: int = -1
    word: str = ""
    letters: tuple[tuple[str, float, float, float, float], ...] = ()


UNDRAWN: NDArray[np.uint8] = np.zeros((0, 0, 3), np.uint8)
"""The pixels of an image that is not drawn."""


def is_held_out(word: str) -> bool:
    """Return whether a word is held out of the training: one in eight by its checksum."""
    return crc32(word.lower().encode()) % 8 == 0


def _near(colour: Colour, rng: Random, spread: int = 14) -> Colour:
    r, g, b = (min(255, max(0, value + rng.randint(-spread, spread))) for value in colour)
    return r, g, b


def _paper(rng: Random) -> Colour:
    """Return a background color: white or pale."""
    if rng.random() < 0.5:
        return 255, 255, 255
    light = rng.randint(225, 255)
    r, g, b = (min(255, light + rng.randint(-12, 12)) for _ in range(3))
    return r, g, b


def _outline(shape: str, x: float, y: float, radius: float, turn: float) -> list[Point]:
    """Return the corners of a shape."""

    def ring(n: int, radii: tuple[float, ...], start: float) -> list[Point]:
        angles = [start + 2 * pi * i / n for i in range(n)]
        return [(x + radii[i % len(radii)] * cos(a), y + radii[i % len(radii)] * sin(a)) for i, a in enumerate(angles)]

    if shape == "square":
        return ring(4, (radius * 1.2,), pi / 4 + turn)
    if shape == "diamond":
        return [(x, y - radius * 1.2), (x + radius * 0.8, y), (x, y + radius * 1.2), (x - radius * 0.8, y)]
    if shape == "triangle":
        return ring(3, (radius * 1.15,), -pi / 2 + turn)
    if shape == "star":
        return ring(10, (radius * 1.2, radius * 0.5), -pi / 2 + turn)
    arm = radius * 0.38
    points: tuple[tuple[float, float], ...]
    points = ((-arm, -radius), (arm, -radius), (arm, -arm), (radius, -arm), (radius, arm), (arm, arm))
    points += ((arm, radius), (-arm, radius), (-arm, arm), (-radius, arm), (-radius, -arm), (-arm, -arm))
    return [(x + dx, y + dy) for dx, dy in points]


def _places(n: int, radius: float, rng: Random) -> list[Point]:
    """Return the centers of n shapes that do not touch."""
    edge = radius * 1.25 + 1
    while True:
        found: list[Point] = []
        for _ in range(60):
            x, y = rng.uniform(edge, SIZE - edge), rng.uniform(edge, SIZE - edge)
            if all((x - a) ** 2 + (y - b) ** 2 > (2.5 * radius) ** 2 for a, b in found):
                found.append((x, y))
            if len(found) == n:
                return found


def _canvas(paper: Colour) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), paper)
    return image, ImageDraw.Draw(image)


def _finished(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.reduce(SCALE))


def draw_shapes(rng: Random, shape: str, colour: str, count: int) -> Picture:
    """Draw `count` separate shapes of one kind and color."""
    image, draw = _canvas(_paper(rng))
    largest = {1: 34, 2: 19, 3: 16, 4: 14}[count]
    radius = rng.uniform(largest * 0.55, largest)
    ink = _near(COLOURS[colour], rng)
    for x, y in _places(count, radius, rng):
        turn = rng.uniform(-0.2, 0.2)
        if shape == "circle":
            corners = [(x - radius) * SCALE, (y - radius) * SCALE, (x + radius) * SCALE, (y + radius) * SCALE]
            draw.ellipse(corners, fill=ink)
        else:
            draw.polygon([(a * SCALE, b * SCALE) for a, b in _outline(shape, x, y, radius, turn)], fill=ink)
    return Picture(_finished(image), "shapes", colour, shape=shape, count=count)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's own font."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow without FreeType"
    return font


def _text(rng: Random, text: str, colour: str, size: int, play: float) -> tuple[Image.Image, list[Point], float, float]:
    """Draw a text whose distance from the center is at most `play` of the free height.

    Returns the image, the left and right of each letter, and the top and bottom of the line, in pixels.
    """
    image, draw = _canvas(_paper(rng))
    font = _font(size)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    room_x, room_y = SIZE * SCALE - (right - left) - 4, SIZE * SCALE - (bottom - top) - 4
    x = 2 + rng.uniform(0, max(0, room_x)) - left
    y = 2 + (1 + rng.uniform(-play, play)) / 2 * max(0, room_y) - top
    draw.text((x, y), text, font=font, fill=_near(COLOURS[colour], rng))
    ends = [font.getlength(text[:i]) for i in range(len(text) + 1)]
    spans = [((x + a) / SCALE, (x + b) / SCALE) for a, b in pairwise(ends)]
    return image, spans, (y + top) / SCALE, (y + bottom) / SCALE


def draw_digit(rng: Random, digit: int, colour: str) -> Picture:
    """Draw a large digit."""
    image, _, _, _ = _text(rng, str(digit), colour, SCALE * rng.randint(36, 84), 1)
    return Picture(_finished(image), "digit", colour, digit=digit)


def draw_word(rng: Random, word: str, colour: str, is_plain: bool = False) -> Picture:
    """Draw a word on one line. Plain words have similar sizes and positions."""
    widest = _font(100).getlength(word) / 100
    largest = min(22.0 if is_plain else 32.0, (SIZE - 4) / widest)
    size = rng.uniform(max(14.0, largest * (0.9 if is_plain else 0.75)), largest) if largest > 14 else largest
    image, spans, top, bottom = _text(rng, word, colour, int(SCALE * size), 0.05 if is_plain else 0.4)
    letters = tuple(
        (letter.lower(), left, top, right, bottom) for letter, (left, right) in zip(word, spans, strict=True)
    )
    return Picture(_finished(image), "word", colour, word=word, letters=letters)


def draw_bars(rng: Random, count: int, colour: str) -> Picture:
    """Draw a bar chart with two axes."""
    image, draw = _canvas(_paper(rng))
    left, bottom = rng.uniform(6, 16), rng.uniform(78, 90)
    right, top = rng.uniform(80, 92), rng.uniform(4, 16)
    step = (right - left - 4) / count
    ink = _near(COLOURS[colour], rng)
    for i in range(count):
        x, width = left + 4 + i * step, step * rng.uniform(0.5, 0.75)
        height = (bottom - top) * rng.uniform(0.25, 1)
        draw.rectangle([x * SCALE, (bottom - height) * SCALE, (x + width) * SCALE, bottom * SCALE], fill=ink)
    _axes(draw, left, top, right, bottom)
    return Picture(_finished(image), "bars", colour, count=count)


def _axes(draw: ImageDraw.ImageDraw, left: float, top: float, right: float, bottom: float) -> None:
    corner = [(left * SCALE, top * SCALE), (left * SCALE, bottom * SCALE), (right * SCALE, bottom * SCALE)]
    draw.line(corner, fill=(60, 60, 60), width=SCALE)


def draw_line(rng: Random, rises: bool, colour: str) -> Picture:
    """Draw a rising or falling line with two axes."""
    image, draw = _canvas(_paper(rng))
    left, bottom = rng.uniform(6, 16), rng.uniform(78, 90)
    right, top = rng.uniform(80, 92), rng.uniform(4, 16)
    n = rng.randint(3, 6)
    low, high = bottom - rng.uniform(2, 16), top + rng.uniform(2, 16)
    steps = [rng.uniform(0.3, 1) for _ in range(n - 1)]
    shares = [sum(steps[:i]) / sum(steps) for i in range(n)]
    heights = [low + (high - low) * (share if rises else 1 - share) for share in shares]
    points = [((left + 3 + (right - left - 4) * i / (n - 1)) * SCALE, y * SCALE) for i, y in enumerate(heights)]
    draw.line(points, fill=_near(COLOURS[colour], rng), width=rng.randint(2, 4) * SCALE, joint="curve")
    _axes(draw, left, top, right, bottom)
    return Picture(_finished(image), "rising" if rises else "falling", colour)


_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiouy"


@cache
def real_words() -> tuple[str, ...]:
    """Return the words of up to six letters in the demo model's corpus."""
    folder = Path(__file__).parents[1] / "demo-model" / "corpus"
    texts = (path.read_text() for path in sorted(folder.glob("*.py")))
    found = {word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", text)}
    return tuple(sorted(word for word in found if 2 <= len(word) <= N_LETTERS))


def made_up_word(rng: Random) -> str:
    """Return pronounceable letters, or random letters in one of three cases."""
    n = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6))
    if rng.random() < 0.33:
        return "".join(rng.choice(ALPHABET) for _ in range(n))
    start = rng.randrange(2)
    return "".join(rng.choice((_CONSONANTS, _VOWELS)[(start + i) % 2]) for i in range(n))


def _cased(word: str, rng: Random) -> str:
    return rng.choice((word, word, word, word.capitalize(), word.upper(), word.upper()))


def any_word(rng: Random, split: str) -> str:
    """Return a word of `split` in any letter case: of the corpus or invented for training, of the corpus for tests."""
    while True:
        word = rng.choice(real_words()) if split == "test" or rng.random() < 0.4 else made_up_word(rng)
        if is_held_out(word) == (split == "test"):
            return _cased(word, rng)


def draw(rng: Random, kind: str, split: str = "train", plain_share: float = 0.0) -> Picture:
    """Draw an image of a kind. Words are those of the split; plain_share of them are plain and in lower case."""
    colour = rng.choice(tuple(COLOURS))
    if kind == "shapes":
        count = rng.choice((1, 1, 2, 2, 3, 3, 3, 4, 4, 4))  # larger counts are harder
        return draw_shapes(rng, rng.choice(SHAPES), colour, count)
    if kind == "digit":
        return draw_digit(rng, rng.randrange(10), colour)
    if kind == "word":
        is_plain, word = rng.random() < plain_share, any_word(rng, split)
        if is_plain:
            return draw_word(rng, word.lower(), "black" if rng.random() < 0.5 else colour, is_plain)
        return draw_word(rng, word, colour)
    if kind == "bars":
        return draw_bars(rng, rng.randint(2, 5), colour)
    return draw_line(rng, kind == "rising", colour)
