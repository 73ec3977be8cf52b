"""When a state is cost saving."""

from server.engine.costs import MoveCost
from server.engine.prefix_cache import eviction_priority


def test_what_was_never_seen_is_tried() -> None:
    cost = MoveCost()
    assert cost.pays(1000, 1000)
    cost.observe_computed(1000, 1.0)
    assert cost.pays(1000, 1000)


def test_saving_that_takes_longer_than_computing_is_not_done() -> None:
    cost = MoveCost()
    cost.observe_computed(1000, 1.0)  # 1,000 tokens a second
    cost.observe_move(100, 100_000, 0.001)  # 100 MB a second, 1,000 bytes a token
    assert cost.pays(1000, 1000)  # 20 ms against a second
    assert not cost.pays(100_000, 1000)  # 2 s to keep a thousand tokens of them
    cost.bandwidth = 1000.0
    assert not cost.pays(1000, 1000)


def test_rates_follow_what_is_seen() -> None:
    cost = MoveCost()
    cost.observe_computed(100, 1.0)
    cost.observe_computed(500, 1.0)
    assert cost.computed == 200
    cost.observe_computed(0, 1.0)
    assert cost.computed == 200


def test_value_grows_with_length_and_falls_with_time() -> None:
    assert eviction_priority(200, 10.0) > eviction_priority(100, 10.0)
    assert eviction_priority(100, 10.0) > eviction_priority(100, 20.0)


def test_a_beginning_is_taken_over_by_its_state_where_no_step_is_too_long_for_that() -> None:
    cost = MoveCost()
    cost.copy_s = 1.0
    cost.observe_computed(1000, 0.5)
    cost.observe_move(1000, 100_000_000, 0.1)
    assert cost.state_is_quicker(1000, 0.3)
    assert cost.copy_pays(1000, 1000, 0.3)
    assert not cost.state_is_quicker(1000, 0.05)
    assert not cost.copy_pays(1000, 1000, 0.05)


def test_a_short_state_does_not_say_what_many_tokens_take() -> None:
    cost = MoveCost()
    cost.observe_move(1000, 21_000_000, 0.1)
    cost.observe_move(20, 20_020_000, 0.1)  # all of a recurrent model's, nearly
    assert cost.bytes_per_token == 21_000
