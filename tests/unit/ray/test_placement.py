"""Which replica a request goes to."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llamapool.ray.placement import LOAD, PIECE, Aim, Candidate, Placement, aim_of, pieces

TEXT = "You answer in rhyme. " * 40
A, B = Candidate("a", n_slots=4), Candidate("b", n_slots=4)


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_the_aim_of_each_api() -> None:
    said = [{"role": "user", "content": "Hello"}]
    assert aim_of(body(model="m", messages=said)).model == "m"
    for members in (
        {"messages": said},
        {"prompt": "Hello"},
        {"input": "Hello"},
        {"system": "Hello"},
        {"input_prefix": "Hello"},
        {"prompt": [{"prompt_string": "Hello"}]},
    ):
        assert "Hello" in aim_of(body(**members)).text
    assert aim_of(b"") == aim_of(b"[1]") == aim_of(b"{bad") == aim_of(b"[" * 100_000) == Aim()
    assert aim_of(b"", "one").replica == "one"


def test_what_is_said_later_changes_nothing_of_the_beginning() -> None:
    first = [{"role": "system", "content": TEXT}, {"role": "user", "content": "One?"}]
    later = [*first, {"role": "assistant", "content": "1"}, {"role": "user", "content": "Two?"}]
    short, long = (pieces(aim_of(body(messages=messages))) for messages in (first, later))
    assert long[: len(short)] == short


def test_a_salt_or_another_model_knows_nothing() -> None:
    known = set(pieces(aim_of(body(model="m", prompt=TEXT))))
    assert known
    assert known.isdisjoint(pieces(aim_of(body(model="n", prompt=TEXT))))
    assert known.isdisjoint(pieces(aim_of(body(model="m", prompt=TEXT, cache_salt="mine"))))


def test_a_known_beginning_is_gone_back_to() -> None:
    placement = Placement()
    first, again, other = Aim("", TEXT + "One?"), Aim("", TEXT + "Two?"), Aim("", "Else. " * 50)
    assert placement.order(first, [A, B]) == ["a", "b"]
    placement.sent(first, "a")
    assert placement.known(again, ["a", "b"]) == {"a": len(TEXT) // PIECE * PIECE, "b": 0}
    assert placement.order(again, [A, B]) == ["a", "b"]
    assert placement.order(other, [A, B]) == ["b", "a"]  # of equals the one that was sent less


def test_nobody_waits_long_for_a_short_beginning() -> None:
    placement = Placement()
    aim = Aim("", TEXT)
    placement.sent(aim, "a")
    few, many = Candidate("a", n_requests=2, n_slots=4), Candidate("a", n_requests=12, n_slots=4)
    assert placement.order(aim, [few, B]) == ["a", "b"]
    assert placement.order(aim, [many, B]) == ["b", "a"]


def test_a_model_is_asked_where_it_is_in_memory() -> None:
    placement = Placement()
    has, busy = Candidate("b", models=frozenset({"m"})), Candidate("b", n_requests=200, models=frozenset({"m"}))
    assert placement.order(Aim("m"), [A, has]) == ["b", "a"]
    assert placement.order(Aim("m"), [A, busy]) == ["a", "b"]
    placement.sent(Aim("n"), "b")  # where it is being loaded now, though nobody has told yet
    assert placement.order(Aim("n"), [A, B]) == ["b", "a"]
    assert placement.order(Aim(""), [A, B]) == ["a", "b"]


def test_what_a_lost_replica_knew_is_forgotten() -> None:
    placement = Placement()
    placement.sent(Aim("m", TEXT), "a")
    placement.keep(["b"])
    placement.keep(["b", "a"])
    assert placement.known(Aim("m", TEXT), ["a", "b"]) == {"a": 0, "b": 0}


def test_one_that_is_named_or_nobody() -> None:
    assert Placement().order(Aim(replica="b"), [A, B]) == ["b"]
    assert Placement().order(Aim(replica="gone"), [A, B]) == []


def test_no_more_is_remembered_than_the_bound() -> None:
    placement = Placement(most=10)
    long = Aim("", "x" * (PIECE * 30))
    placement.sent(long, "a")
    assert placement.known(long, ["a"]) == {"a": 10 * PIECE}  # the beginning, without which the end is of no use


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(1, 6)), max_size=30))
def test_every_replica_is_in_every_order_once(sent: list[tuple[int, str, int]]) -> None:
    placement = Placement(most=20)
    candidates = [Candidate(id_, n_requests=n) for n, id_ in enumerate("abc")]
    for topic, replica, length in sent:
        aim = Aim(str(topic), f"{topic}" * PIECE * length)
        assert sorted(placement.order(aim, candidates)) == ["a", "b", "c"]
        placement.sent(aim, replica)
        assert placement.known(aim, [replica])[replica] == length * PIECE
        assert length * PIECE < LOAD
