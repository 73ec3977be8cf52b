"""Masks of several constraints in one call."""

import pytest

from server.constrain.grammar.matcher import Masks
from server.errors import InvalidRequest
from tests.unit.constrain.builders import WORDS

MASKS = Masks()


def test_masks_computed_together_are_those_computed_alone() -> None:
    made = [WORDS.json_schema({"type": kind}) for kind in ("string", "integer", "object", "array", "null")]
    made += [WORDS.regex("[a-c]{3}"), WORDS.choice(["é€", "yes"]), made[0].fork()]
    made[-1].accept(ord('"'))
    together = MASKS.compute(made)
    alone = [constraint.mask() for constraint in made]
    n_bytes = made[0].n_mask_bytes
    assert [bytes(mask) for mask in together if not isinstance(mask, Exception)] == [mask[:n_bytes] for mask in alone]
    assert len(together) == len(alone)


def test_one_that_gave_up_is_its_own_failure() -> None:
    good, bad = WORDS.regex("ab"), WORDS.regex("ab")
    with pytest.raises(InvalidRequest):
        bad.accept(ord("x"))
    first, second, third = MASKS.compute([good, bad, good.fork()])
    assert isinstance(second, InvalidRequest)
    assert "cannot be kept to the grammar" in second.message
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert bytes(first) == bytes(third) == good.mask()[: good.n_mask_bytes]
