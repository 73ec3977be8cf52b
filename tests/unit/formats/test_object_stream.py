"""Arguments as they come, as the text of an object: whatever a model writes, and however it is cut into pieces."""

import json
import random
from typing import Any

import pydantic_core
import pytest

from server.formats.arguments import ObjectStream, object_text

WRITTEN = (
    '{"city": "Par\\u00eds \\ud83d\\ude00", "days": [1, -2.5e3, {"a": null}], "b": {"c": true, "": []}}',
    ' {\n "text": "a\\\\b\\"c\\n", "code": "def f():\\n    return {\\"a\\": [1]}" } ',
    '{"n": 0, "m": 12345678901234567890123, "e": 1E-7}',
    "{}",
)


def sent(pieces: list[str]) -> tuple[list[str], ObjectStream]:
    stream = ObjectStream()
    return [*map(stream.feed, pieces), stream.finish()], stream


def pieces(text: str, chance: random.Random) -> list[str]:
    found = []
    while text:
        n = chance.randint(1, 5)
        found.append(text[:n])
        text = text[n:]
    return found


def damaged(text: str, chance: random.Random) -> str:
    at, n = chance.randrange(len(text)), chance.randint(0, 2)
    return (
        text[:at] + chance.choice(["", '"', "}", "]", "[", ",", ":", " x", "\\", "{", "0", "\\ud800"]) + text[at + n :]
    )


@pytest.mark.parametrize("start", range(0, 3000, 1000))
def test_what_is_damaged_anywhere_is_an_object_and_the_same_in_pieces_as_in_one(start: int) -> None:
    for seed in range(start, start + 1000):
        check_damaged(random.Random(seed))


def check_damaged(chance: random.Random) -> None:
    text = damaged(chance.choice(WRITTEN), chance)
    told, stream = sent(pieces(text, chance))
    if stream.is_cut:
        assert pydantic_core.from_json("".join(told), allow_partial=True) == cut_off(text)
        return
    assert "".join(told).strip() == object_text(text, whole=True).strip()
    given = json.loads("".join(told))
    assert isinstance(given, dict)
    if text.lstrip().startswith("{") and given.get("arguments") != text:  # which is all of it; else it must be JSON
        assert given == pydantic_core.from_json(text)


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_cut_off_anywhere_is_sent_as_far_as_it_goes(text: str) -> None:
    for end in range(text.index("{") + 1, len(text.rstrip())):
        told, stream = sent(list(text[:end]))
        assert stream.is_cut
        assert "".join(told) == text[:end]


def cut_off(text: str) -> Any:
    return pydantic_core.from_json(object_text(text, whole=True))
