import pytest

from server.transport.limits import BodyMemory, TooManyBodies


def test_bytes_count_until_their_request_ends() -> None:
    memory = BodyMemory(100)
    one, other = memory.share(), memory.share()
    one.take(60)
    other.take(40)
    assert memory.held == 100
    one.release()
    assert memory.held == 40
    other.take(60)


def test_what_goes_beyond_the_limit_is_refused_and_not_counted() -> None:
    memory = BodyMemory(100)
    one, other = memory.share(), memory.share()
    one.take(60)
    other.take(30)
    with pytest.raises(TooManyBodies, match="100 bytes"):
        other.take(11)
    assert memory.held == 90
    other.take(10)


def test_a_share_is_given_back_once() -> None:
    memory = BodyMemory(100)
    share = memory.share()
    share.take(10)
    share.release()
    share.release()
    assert memory.held == 0
