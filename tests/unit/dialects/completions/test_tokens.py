import orjson
import pytest

from server.dialects.common import Json
from server.dialects.native.tokens import detokenize, read_detokenize, read_tokenize, tokenize
from server.errors import InvalidRequest
from tests.support.fakes import BOS, FakeVocab
from tests.unit.dialects.builders import make_model


def tokens(**body: object) -> Json:
    return tokenize(read_tokenize(body), make_model())


def content(**body: object) -> Json:
    return detokenize(read_detokenize(body), FakeVocab())


def test_a_text_becomes_tokens() -> None:
    assert tokens(content="hi") == {"tokens": [104, 105]}
    assert tokens(content="hi", add_special=True) == {"tokens": [BOS, 104, 105]}
    assert tokens(content="<s>") == {"tokens": [BOS]}
    assert tokens(content="<s>", parse_special=False) == {"tokens": [60, 115, 62]}
    assert tokens(content=[104, "i"]) == {"tokens": [104, 105]}


def test_without_content_there_are_no_tokens() -> None:
    assert tokens() == {"tokens": []}
    assert tokens(content=None, add_special=True) == {"tokens": []}


def test_a_piece_is_text_or_bytes() -> None:
    assert tokens(content="aé", with_pieces=True) == {
        "tokens": [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    }


def test_tokens_become_text() -> None:
    assert content(tokens=[104, 105]) == {"content": "hi"}
    assert content(tokens=[195]) == {"content": "\ufffd"}
    assert content() == {"content": ""}


@pytest.mark.parametrize(
    ("value", "named"),
    [("hi", "tokens"), ([1, "a"], "tokens.1"), ([True], "tokens.0"), ([260], "tokens.0"), ([-1], "tokens.0")],
)
def test_a_wrong_token_is_refused_at_its_place(value: object, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        content(tokens=value)
    assert caught.value.param == named


@pytest.mark.parametrize("n", [16384, 16385, 40000])
@pytest.mark.parametrize("with_pieces", [False, True])
def test_many_tokens_are_the_same_as_few(n: int, with_pieces: bool) -> None:
    text = "abcdefghij" * (n // 10 + 1)
    written = orjson.loads(orjson.dumps(tokens(content=text[:n], with_pieces=with_pieces)))
    ids = [ord(letter) for letter in text[:n]]
    assert written == {"tokens": [{"id": i, "piece": chr(i)} for i in ids] if with_pieces else ids}
