import pytest

from server.transport.limits import BodyMemory, TooManyBodies


def test_what_goes_beyond_the_limit_is_refused_and_not_counted() -> None:
    memory = BodyMemory(100)
    one, other = memory.share(), memory.share()
    one.take(60)
    other.take(30)
    with pytest.raises(TooManyBodies, match="100 bytes"):
        other.take(11)
    assert memory.held == 90
    other.take(10)
