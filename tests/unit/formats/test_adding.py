"""The walk through a new model family in docs/adding.md, as it is written there."""

import re

from tests.support.real_server import ROOT


def test_everything_that_the_page_points_to_is_there() -> None:
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    _, _, walk = page.partition("## A new model family")
    formats_folder = ROOT / "server" / "formats"
    folders = (formats_folder, ROOT / "tests" / "unit" / "formats", formats_folder / "families")
    for path in re.findall(r"`((?:server|tests)/\S+\.py)`", page):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(?:families/)?(\w+\.py)`", walk):
        assert any((place / name).is_file() for place in folders), name
