"""``/tokenize``, ``/detokenize`` and ``/apply-template`` against llama-server's, reply for reply."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

TEXTS = [
    "",
    " ",
    "the quick brown fox",
    "a å 日本語 🙂\n\t x",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>",
    "\u0000 nul",
    "é" * 300,
]


@pytest.mark.parametrize("content", TEXTS, ids=lambda text: repr(text[:12]))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_special": True},
        {"parse_special": False},
        {"with_pieces": True},
        {"add_special": True, "with_pieces": True},
    ],
    ids=str,
)
def test_tokenize(pair: Pair, content: str, options: dict[str, bool]) -> None:
    ours, theirs = pair.post("/tokenize", {"content": content, **options})
    assert ours == theirs


@pytest.mark.parametrize("body", [{"content": ["the", 300, " fox"]}, {}], ids=str)
def test_tokenize_of_other_values(pair: Pair, body: dict[str, Any]) -> None:
    ours, theirs = pair.request("POST", "/tokenize", body)
    assert (ours.status, ours.json()) == (theirs.status, theirs.json())


@pytest.mark.parametrize(
    "tokens", [[], [300, 301, 302], [393, 65, 66], [0xC3, 0xA9], [233], list(range(250, 393))], ids=str
)
def test_detokenize(pair: Pair, tokens: list[int]) -> None:
    ours, theirs = pair.post("/detokenize", {"tokens": tokens})
    assert ours == theirs
