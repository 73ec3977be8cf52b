"""What several ask for at once is made once."""

import threading
from concurrent.futures import ThreadPoolExecutor

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
