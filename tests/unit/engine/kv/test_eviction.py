"""Whose cells go first."""

from server.engine.kv.cost import least_valuable, look_for_cover
from server.engine.kv.ram_cache import Presence
from server.engine.lora import Tuning
from server.engine.sequence import Slot


def slot(id_: int, tokens: list[int], used_at: float = 0.0, n_used: int = 0) -> Slot:
    return Slot(id_, tokens, last_used=used_at, n_used=n_used)


def test_an_empty_slot_is_taken_first_and_the_spare_one_last() -> None:
    slots = [slot(0, [1] * 50, 9.0), slot(1, []), slot(2, [3] * 5, 1.0)]
    assert least_valuable(slots).id == 1
    assert least_valuable(slots, slots[1]).id == 2
    assert least_valuable(slots[:1], slots[0]).id == 0


def test_of_two_as_long_the_older_goes() -> None:
    assert least_valuable([slot(0, [1] * 50, 8.0), slot(1, [2] * 50, 9.0)]).id == 0


def test_a_short_one_goes_before_a_long_one_that_is_a_little_older() -> None:
    assert least_valuable([slot(0, [1] * 5000, 8.0), slot(1, [2] * 50, 9.0)]).id == 1


def test_what_was_reused_stays() -> None:
    assert least_valuable([slot(0, [1] * 50, 8.0, n_used=3), slot(1, [2] * 50, 9.0)]).id == 1


def test_what_another_slot_holds_too_is_worth_nothing() -> None:
    slots = [slot(0, [1] * 5000, 9.0, n_used=5), slot(1, [1] * 6000, 8.0), slot(2, [2] * 50, 1.0)]
    look_for_cover(slots[0], slots)
    assert least_valuable(slots).id == 0
    slots[1].tokens = [3] * 6000  # it got other content meanwhile
    assert least_valuable(slots).id == 2


def test_the_longer_one_that_comes_later_makes_the_shorter_worthless() -> None:
    slots = [slot(0, [1] * 5000, 9.0), slot(1, [1] * 6000, 8.0), slot(2, [2] * 50, 1.0)]
    look_for_cover(slots[1], slots)
    assert least_valuable(slots).id == 0


def test_cells_of_another_lora_set_cover_nothing() -> None:
    slots = [slot(0, [1] * 5000, 9.0), slot(1, [1] * 6000, 8.0), slot(2, [2] * 50, 1.0)]
    slots[1].tuning = Tuning(((0, 1.0),), 0)
    look_for_cover(slots[0], slots)
    assert least_valuable(slots).id == 2


def test_a_longer_one_that_can_not_be_cut_to_it_covers_nothing() -> None:
    slots = [slot(0, [1] * 5000, 9.0), slot(1, [1] * 6000, 8.0), slot(2, [2] * 50, 1.0)]
    slots[1].floor = 6000
    look_for_cover(slots[0], slots)
    assert least_valuable(slots).id == 2


def test_what_the_tier_holds_too_is_worth_nothing() -> None:
    slots = [slot(0, [1] * 5000, 9.0, n_used=5), slot(1, [2] * 50, 1.0)]
    slots[0].in_ram = Presence(held=True)
    assert least_valuable(slots).id == 0
    slots[0].in_ram.held = False  # it had to go
    assert least_valuable(slots).id == 1
