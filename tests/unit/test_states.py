"""The states of requests have the same names in the code, the web UI and the documentation."""

import re

from server.engine.request import State
from tests.support.real_server import ROOT


def test_the_web_ui_and_the_documentation_name_every_state() -> None:
    texts = (ROOT / "server" / "web" / "static" / "app" / "lib" / "texts.js").read_text()
    assert set(re.findall(r"^outcome_(\w+):", texts, re.MULTILINE)) == {*State} - {State.CUT_OFF}
    documented = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"`{state}`" in documented for state in (State.DONE, State.CUT_OFF))
    assert all(state in documented for state in (State.CANCELLED, State.FAILED))
