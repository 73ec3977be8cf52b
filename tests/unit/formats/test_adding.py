"""The walk through a new model family in docs/adding.md, as it is written there."""

import re
from typing import Any

import yaml

from server.formats.chat_format import ChatFormat
from tests.support.real_server import ROOT
from tests.unit.formats.reading import Read
from tests.unit.formats.recorded import PARIS

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def block(first_line: str) -> str:
    """The code block that begins with that comment."""
    found = re.search(rf"```\w+\n# {re.escape(first_line)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_reads_its_sample() -> None:
    made: dict[str, Any] = {}
    exec(compile(block("server/formats/families/otter.py"), "docs/adding.md", "exec"), made)
    (sample,) = yaml.safe_load(block("tests/unit/formats/outputs.yaml"))["otter"]
    parser = ChatFormat.of(made["OTTER"], "</think>").parser([{"name": "get_weather"}])
    found = Read()
    found.take([*parser.feed(sample["text"]), *parser.finish()])
    assert found == Read(sample["content"], sample["reasoning"], [("get_weather", PARIS)])


def test_everything_that_the_page_points_to_is_there() -> None:
    _, _, walk = PAGE.partition("## A new model family")
    formats_folder = ROOT / "server" / "formats"
    folders = (formats_folder, ROOT / "tests" / "unit" / "formats", formats_folder / "families")
    for path in re.findall(r"`((?:server|tests)/\S+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(?:families/)?(\w+\.py)`", walk):
        assert any((place / name).is_file() for place in folders), name
