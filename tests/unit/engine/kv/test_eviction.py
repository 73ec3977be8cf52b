"""Whose cells go first."""

from server.engine.sequence import Slot, first_to_evict


def slot(id_: int, tokens: list[int], used_at: float = 0.0) -> Slot:
    return Slot(id_, tokens, last_used=used_at)


def test_an_empty_slot_is_taken_first_and_the_spare_one_last() -> None:
    slots = [slot(0, [1] * 50, 9.0), slot(1, []), slot(2, [3] * 5, 1.0)]
    assert first_to_evict(slots).id == 1
    assert first_to_evict(slots, slots[1]).id == 2
    assert first_to_evict(slots[:1], slots[0]).id == 0


def test_of_two_as_long_the_older_goes() -> None:
    assert first_to_evict([slot(0, [1] * 50, 8.0), slot(1, [2] * 50, 9.0)]).id == 0


def test_a_short_one_goes_before_a_long_one_that_is_a_little_older() -> None:
    assert first_to_evict([slot(0, [1] * 5000, 8.0), slot(1, [2] * 50, 9.0)]).id == 1
