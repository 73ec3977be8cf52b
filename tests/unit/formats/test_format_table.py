"""The page of formats says what the parsers do."""

import pytest

from server.formats import FORMATS
from server.formats.tool_format import ToolFormat
from tests.unit.formats.format_table import PAGE, descriptions, page


def test_the_page_of_formats_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.unit.formats.format_table"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_each_format_is_described_with_the_raw_text(form: ToolFormat) -> None:
    assert "get_weather" in descriptions()[form.name].partition("::\n\n")[2]
