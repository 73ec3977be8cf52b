"""Grammars that wait for a trigger, in both servers: the same tokens before it and behind it."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
WORD = {"type": 1, "value": "is P"}
GRAMMAR = 'root ::= "is P" "atagonia, or so it seems!"'


def body(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "temperature": 0, "n_predict": 40, "return_tokens": True, "cache_prompt": False, **more}


def tokens_of(demo: Pair, text: str) -> list[int]:
    found: list[int] = demo.ours.post("/tokenize", {"content": text, "parse_special": True})["tokens"]
    return found


def same(demo: Pair, **more: Any) -> str:
    """Both servers' text for the same request, which must be one."""
    ours, theirs = demo.post("/completion", body(**more))
    # Forced text is written in the vocabulary's own spelling here, in what is likeliest piece by piece there.
    assert ours["content"] == theirs["content"]
    for key in ("grammar_lazy", "grammar_triggers", "preserved_tokens"):
        assert ours["generation_settings"][key] == theirs["generation_settings"][key]
    return str(ours["content"])


def test_a_word_begins_it(demo: Pair) -> None:
    said = same(demo, grammar=GRAMMAR, grammar_lazy=True, grammar_triggers=[WORD])
    before, word, behind = said.partition("is P")
    assert before
    assert word
    assert behind == "atagonia, or so it seems!"


@pytest.mark.parametrize(("kind", "pattern"), [(2, "is [A-Z]"), (2, "capital.*?(is P)"), (3, "[\\s\\S]*(is P)")])
def test_a_pattern_begins_it(demo: Pair, kind: int, pattern: str) -> None:
    said = same(demo, grammar=GRAMMAR, grammar_lazy=True, grammar_triggers=[{"type": kind, "value": pattern}])
    assert said.endswith("is Patagonia, or so it seems!")


def test_a_trigger_that_ends_inside_of_a_token_is_kept_to_the_grammar_too(demo: Pair) -> None:
    """llama-server has sampled the whole token, which its grammar then refuses."""
    asked = body(grammar=GRAMMAR.replace('is P" "a', 'is Pa" "'), grammar_lazy=True)
    ours, theirs = demo.request("POST", "/completion", asked | {"grammar_triggers": [{"type": 1, "value": "is Pa"}]})
    assert theirs.status == 500
    assert ours.status == 200
    assert "is Pa" not in ours.json()["content"]  # it says something else


def test_without_its_trigger_nothing_changes(demo: Pair) -> None:
    free = same(demo)
    grammar = 'root ::= "Rome" " or so"'
    lazy = same(demo, grammar=grammar, grammar_lazy=True, grammar_triggers=[{"type": 1, "value": "Rome"}])
    assert lazy == free


def test_a_token_begins_it(demo: Pair) -> None:
    free = demo.ours.post("/completion", body())["tokens"]
    texts = [demo.ours.post("/detokenize", {"tokens": [token]})["content"] for token in free]
    place = next(at for at, text in enumerate(texts) if at > 1 and text.strip().isalpha())
    trigger = {"type": 0, "value": texts[place], "token": free[place]}
    grammar = f'root ::= "{texts[place]}" " yes indeed"'
    said = same(demo, grammar=grammar, grammar_lazy=True, grammar_triggers=[trigger])
    assert said.endswith(" yes indeed")


def test_preserved_tokens_are_shown(demo: Pair) -> None:
    (token,) = tokens_of(demo, "<think>")
    bias = [[token, 100]]
    for kept in ([], ["<think>"]):
        same(demo, logit_bias=bias, preserved_tokens=kept, n_predict=3)


@pytest.mark.parametrize("triggers", [[], None])
def test_a_lazy_grammar_without_triggers_is_refused(demo: Pair, triggers: Any) -> None:
    asked = body(grammar=GRAMMAR, grammar_lazy=True) | ({} if triggers is None else {"grammar_triggers": triggers})
    ours, theirs = demo.request("POST", "/completion", asked)
    assert ours.status == 400
    if triggers is not None:
        assert theirs.status == 400
