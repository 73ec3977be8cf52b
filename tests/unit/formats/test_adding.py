"""The walk through a new model family in docs/adding.md, as it is written there."""

import re
from types import ModuleType

import pytest

from server import formats
from server.formats import recognition
from server.formats.tool_format import ToolFormat
from tests.support.real_server import ROOT

BLOCK = re.compile(r"```python\n# (\S+)\.py\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    return dict(BLOCK.findall((ROOT / "docs" / "adding.md").read_text(encoding="utf-8")))


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> ToolFormat:
    """The format of the page's file, in its place."""
    module = ModuleType("otter")
    exec(
        compile(blocks()["server/formats/families/otter"], "docs/adding.md: otter.py", "exec"),
        module.__dict__,
    )
    made = module.OTTER
    assert isinstance(made, ToolFormat)
    monkeypatch.setitem(formats.BY_NAME, made.name, made)
    monkeypatch.setattr(recognition, "FORMATS", (made, *formats.FORMATS))
    return made


def test_everything_that_the_page_points_to_is_there() -> None:
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    _, _, walk = page.partition("## A new model family")
    formats_folder = ROOT / "server" / "formats"
    folders = (formats_folder, ROOT / "tests" / "unit" / "formats", formats_folder / "families")
    for path in re.findall(r"`((?:server|tests)/\S+\.py)`", page):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(?:families/)?(\w+\.py)`", walk):
        assert any((place / name).is_file() for place in folders), name
