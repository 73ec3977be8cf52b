"""The example of a new model family in docs/adding.md, and the generated page docs/tool-formats.md."""

import re
from typing import Any

import yaml

from server.formats.chat_format import ChatFormat
from tests.support.real_server import ROOT
from tests.unit.formats import format_table
from tests.unit.formats.parsing import ParsedMessage, parse_text
from tests.unit.formats.recorded import PARIS

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def code_block(first_line: str) -> str:
    """Return the page's code block that begins with that comment."""
    found = re.search(rf"```\w+\n# {re.escape(first_line)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_example_format_parses_its_sample_output() -> None:
    module: dict[str, Any] = {}
    exec(compile(code_block("server/formats/families/otter.py"), "docs/adding.md", "exec"), module)
    (sample,) = yaml.safe_load(code_block("tests/unit/formats/outputs.yaml"))["otter"]
    parser = ChatFormat.of(module["OTTER"], sample["template"]).parser([{"name": "get_weather"}])
    expected = ParsedMessage(sample["content"], sample["reasoning"], [("get_weather", PARIS)])
    assert parse_text(parser, sample["text"]) == expected


def test_tool_formats_page_matches_the_parsers() -> None:
    assert format_table.PAGE.read_text(encoding="utf-8") == format_table.page(), (
        "run python -m tests.unit.formats.format_table"
    )


def test_files_named_on_the_page_exist() -> None:
    _, _, walkthrough = PAGE.partition("## A new model family")
    formats_folder = ROOT / "server" / "formats"
    folders = (formats_folder, ROOT / "tests" / "unit" / "formats", formats_folder / "families")
    for path in re.findall(r"`((?:server|tests)/\S+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(?:families/)?(\w+\.py)`", walkthrough):
        assert any((folder / name).is_file() for folder in folders), name
