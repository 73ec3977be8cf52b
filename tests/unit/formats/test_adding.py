"""The walk through a new model family in docs/adding.md, as it is written there."""

import re
from types import ModuleType

import pytest

from server import formats
from server.formats import recognition
from server.formats.tool_format import ToolFormat
from tests.support.real_server import ROOT
from tests.unit.formats import further_outputs
from tests.unit.formats.reading import every_character, forced_call_grammar, parser, read, template
from tests.unit.formats.recorded import FULL, TOOLS, Recorded
from tests.unit.formats.test_recognition import rendering, speaker
from tests.unit.structured.builders import BYTES, matches

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


def test_one_file_and_a_sample_make_a_family(family: ToolFormat) -> None:
    sample = eval(blocks()["tests/unit/formats/further_outputs"], vars(further_outputs))
    assert isinstance(sample, Recorded)
    for cuts in ((), every_character(sample.text)):
        found = read(parser(sample.format, sign=sample.sign), sample.text, cuts)
        assert (found.content, found.reasoning, tuple(found.calls)) == (sample.content, sample.reasoning, sample.calls)
    forced = BYTES.lark(forced_call_grammar(template(family.name), TOOLS, name="", parallel=True))
    assert matches(forced.fork(), f"<otter_call>get_weather\n{FULL}\n</otter_call>")
    assert not matches(forced.fork(), '<otter_call>get_weather\n{"city": 5}\n</otter_call>')
    assert speaker(rendering(family)).chat_format().tool_format is family


def test_everything_that_the_page_points_to_is_there() -> None:
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    _, _, walk = page.partition("## A new model family")
    formats_folder = ROOT / "server" / "formats"
    folders = (formats_folder, ROOT / "tests" / "unit" / "formats", formats_folder / "families")
    for path in re.findall(r"`((?:server|tests)/\S+\.py)`", page):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(?:families/)?(\w+\.py)`", walk):
        assert any((place / name).is_file() for place in folders), name
