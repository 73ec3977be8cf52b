"""Every count of a reply's usage is added up, shown by each API, and read again."""

from dataclasses import fields

import pytest

from server.dialects.usage import Usage

COUNTS = [field.name for field in fields(Usage)]
SAMPLE = Usage(**{name: 10**i for i, name in enumerate(reversed(COUNTS))})


@pytest.mark.parametrize("count", COUNTS)
def test_every_count_is_added_up(count: str) -> None:
    assert getattr(SAMPLE + SAMPLE, count) == 2 * getattr(SAMPLE, count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("table", ["openai", "responses"])
def test_what_openai_apis_show_is_read_again(table: str, count: str) -> None:
    shown = getattr(SAMPLE, table)()
    assert getattr(Usage.read(shown), count) == getattr(SAMPLE, count)


@pytest.mark.parametrize("count", COUNTS)
def test_every_count_changes_what_anthropics_api_shows(count: str) -> None:
    without = Usage(**{name: 0 if name == count else getattr(SAMPLE, name) for name in COUNTS})
    assert without.anthropic() != SAMPLE.anthropic()


@pytest.mark.parametrize("shown", [None, [], "text", {}, {"input_tokens": None}])
def test_anything_else_has_no_counts(shown: object) -> None:
    assert Usage.read(shown) == Usage()
