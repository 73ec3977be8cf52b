import orjson
import pytest

from server.dialects.common import Json
from server.dialects.native.tokens import read_tokenize
from tests.unit.dialects.builders import make_model


def tokens(**body: object) -> Json:
    return read_tokenize(body).work(make_model(), {})


def test_without_content_there_are_no_tokens() -> None:
    assert tokens() == {"tokens": []}
    assert tokens(content=None, add_special=True) == {"tokens": []}


@pytest.mark.parametrize("n", [16384, 16385, 40000])
@pytest.mark.parametrize("with_pieces", [False, True])
def test_many_tokens_are_the_same_as_few(n: int, with_pieces: bool) -> None:
    text = "abcdefghij" * (n // 10 + 1)
    written = orjson.loads(orjson.dumps(tokens(content=text[:n], with_pieces=with_pieces)))
    ids = [ord(letter) for letter in text[:n]]
    assert written == {"tokens": [{"id": i, "piece": chr(i)} for i in ids] if with_pieces else ids}
