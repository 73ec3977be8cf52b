"""What several ask for at once is made once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.errors import InvalidRequest
from server.structured.grammar.compiler import NewestValues


def test_what_is_asked_for_at_the_same_time_is_made_once() -> None:
    cache: NewestValues[object] = NewestValues(4)
    made: list[object] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> object:
        begun.set()
        assert go_on.wait(60)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "key", make)
        assert begun.wait(60)
        others = [pool.submit(cache.get, "key", make) for _ in range(3)]
        assert cache.get("another", lambda: 7) == 7  # nobody waits for what he didn't ask for
        go_on.set()
        found = [future.result(60) for future in (first, *others)]
    assert found == made * 4
    assert len(made) == 1


def test_a_refusal_is_remembered_and_raised_anew() -> None:
    cache: NewestValues[int] = NewestValues(4)
    calls: list[int] = []

    def refuse() -> int:
        calls.append(1)
        raise InvalidRequest("no", "field")

    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="no") as caught:
            cache.get("key", refuse)
        errors.append(caught.value)
    assert len(calls) == 1
    assert errors[0] is not errors[1]
    assert errors[1].param == "field"


def test_the_oldest_goes_first() -> None:
    cache: NewestValues[int] = NewestValues(2)
    for number, key in enumerate("abac"):
        cache.get(key, lambda number=number: number)  # type: ignore[misc]
    assert [cache.get(key, lambda: -1) for key in "ca"] == [3, 0]
    assert cache.get("b", lambda: -1) == -1
