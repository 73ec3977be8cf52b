"""JSON bodies: duplicate keys, errors with their position, and the limit of values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.transport.body import MAX_VALUES, TooManyValues, parse_object


def test_last_of_duplicate_keys_counts() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"{b", "line 1, column 2"),
        (b'{\n "a": x}', "line 2, column 7"),
        (b'{"a": NaN}', "line 1, column 7"),
        (b'{"a": Infinity}', "line 1, column 7"),
        (b'{"a": 1e999}', "line 1, column 7"),
        (b'{"a": "cut \\ud83d"}', "line 1, column 12: no low surrogate"),
        (b'{"a":\n "\xc3\xa4\xff"}', "not valid UTF-8 at line 2, column 4: byte 0xff"),
        (b'{"a": ' + b"[" * 5000, "depth limit"),
        (b"[]", "must be a JSON object, not an array"),
        ('{"a": 1}'.encode("utf-16"), "not valid"),
    ],
)
def test_invalid_json_is_refused_with_its_position(body: bytes, position: str) -> None:
    with pytest.raises(InvalidRequest, match=position):
        parse_object(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except InvalidRequest as error:
        assert error.message  # noqa: PT017 (any outcome but another exception is right)


@pytest.mark.parametrize("value", [b"1", b"[]", b"{}", b'"a"'])
def test_body_with_too_many_values_is_refused(value: bytes) -> None:
    with pytest.raises(TooManyValues, match=str(MAX_VALUES)):
        parse_object(b'{"prompt": [' + b",".join([value] * (MAX_VALUES + 1)) + b"]}")
