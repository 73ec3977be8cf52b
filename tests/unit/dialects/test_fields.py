import pytest

from server.dialects.fields import Body, Count, Fraction, Number, parse
from server.errors import InvalidRequest


class Sample(Body):
    count: Count | None = None
    number: Number | None = None
    fraction: Fraction | None = None
    flag: bool | None = None
    text: str | None = None


def refused(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(Sample, fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", "1"),
        ("count", True),
        ("count", 1.5),
        ("count", -1),
        ("count", 2**31),
        ("count", 1e300),
        ("count", [1]),
        ("number", "0.5"),
        ("number", True),
        ("number", float("nan")),
        ("number", float("inf")),
        ("number", 1e7),
        ("fraction", 1.01),
        ("fraction", -0.1),
        ("flag", 1),
        ("flag", "true"),
        ("text", 5),
        ("text", {}),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert error.message.startswith(f"{name}: ")


def test_the_message_shows_the_value_but_never_much_of_it() -> None:
    assert "got 1.5" in refused(count=1.5).message
    assert len(refused(number="x" * 100_000).message) < 200


def test_null_is_the_same_as_absent() -> None:
    assert parse(Sample, {"count": None, "flag": None}) == Sample()


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert parse(Sample, {"count": 40.0}).count == 40


def test_an_integer_is_a_number() -> None:
    assert parse(Sample, {"number": 2}).number == 2


def test_unknown_fields_are_ignored() -> None:
    assert parse(Sample, {"foo": object()}) == Sample()


@pytest.mark.parametrize("body", [[], "text", 5, None])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidRequest):
        parse(Sample, body)
