"""Masks of several constraints in one call."""

import pytest

from server.errors import InvalidRequest
from server.structured.constraint import n_mask_bytes
from server.structured.grammar.matcher import Masks
from tests.unit.structured.builders import WORDS

MASKS = Masks()


def test_masks_computed_together_are_those_computed_alone() -> None:
    made = [WORDS.json_schema({"type": kind}) for kind in ("string", "integer", "object", "array", "null")]
    made += [WORDS.regex("[a-c]{3}"), WORDS.choice(["é€", "yes"]), made[0].fork()]
    made[-1].accept(ord('"'))
    together = MASKS.compute(made)
    alone = [constraint.mask() for constraint in made]
    n_bytes = n_mask_bytes(made[0].tokenizer.n_tokens)
    assert [bytes(mask) for mask in together if not isinstance(mask, Exception)] == [mask[:n_bytes] for mask in alone]
    assert len(together) == len(alone)


@pytest.mark.parametrize("together", [False, True])
def test_a_reply_whose_masks_take_too_long_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    monkeypatch.setattr("server.structured.grammar.matcher.SLOW_S", 0.0)
    monkeypatch.setattr("server.structured.grammar.matcher.MAX_SLOW_S", 0.0)
    slow, other = WORDS.regex("[a-c]+"), WORDS.regex("[a-c]+")
    if together:
        first, _ = MASKS.compute([slow, other])
        assert not isinstance(first, Exception)
        first, _ = MASKS.compute([slow, other])  # by themselves now, and measured
        assert isinstance(first, InvalidRequest)
        message = first.message
    else:
        with pytest.raises(InvalidRequest) as caught:
            slow.mask()
        message = caught.value.message
    assert message.startswith("the output cannot be kept to the grammar: its masks have taken more than 0 s")
    assert not slow.allows(ord("a"))
    with pytest.raises(InvalidRequest, match="more than 0 s"):
        slow.accept(ord("a"))


def test_one_that_gave_up_is_its_own_failure() -> None:
    good, bad = WORDS.regex("ab"), WORDS.regex("ab")
    with pytest.raises(InvalidRequest):
        bad.accept(ord("x"))
    first, second, third = MASKS.compute([good, bad, good.fork()])
    assert isinstance(second, InvalidRequest)
    assert "cannot be kept to the grammar" in second.message
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert bytes(first) == bytes(third) == good.mask()[: n_mask_bytes(good.tokenizer.n_tokens)]
