"""The page of formats says what the parsers do."""

from tests.unit.formats.format_table import PAGE, page


def test_the_page_of_formats_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.unit.formats.format_table"
