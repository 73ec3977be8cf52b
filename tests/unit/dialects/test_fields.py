from typing import Annotated

import pytest
from pydantic import AfterValidator

from server.dialects.fields import Body, Count, Fraction, Number, SoftCount, parse, within
from server.errors import InvalidRequest


class Sample(Body):
    count: Count | None = None
    number: Number | None = None
    fraction: Fraction | None = None
    part: Annotated[float, AfterValidator(within(0.0, 0.99))] | None = None
    soft: SoftCount | None = None
    flag: bool | None = None
    text: str | None = None


def refused(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(Sample, fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "1", "Field 'count': type must be number, but is string"),
        ("number", {}, "Field 'number': type must be number, but is object"),
        ("flag", 1, "Field 'flag': type must be boolean, but is number"),
        ("text", [], "Field 'text': type must be string, but is array"),
        ("count", -5, "Field 'count': Value must be between 0 <= value <= 2147483647, but got -5"),
        ("part", 1.0, "Field 'part': Value must be between 0.000000 <= value <= 0.990000, but got 1.000000"),
    ],
)
def test_the_words_are_llama_servers(name: str, value: object, message: str) -> None:
    assert refused(**{name: value}).message == message


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [("number", 1e7, 1e6), ("number", -1e300, -1e6), ("fraction", 1.01, 1.0), ("fraction", -7, 0.0), ("soft", -3, 0)],
)
def test_past_a_soft_limit_a_value_becomes_the_limit(name: str, value: float, limit: float) -> None:
    assert getattr(parse(Sample, {name: value}), name) == limit


def test_the_message_shows_the_value_but_never_much_of_it() -> None:
    assert "got 1.5" in refused(count=1.5).message
    assert len(refused(number="x" * 100_000).message) < 200
