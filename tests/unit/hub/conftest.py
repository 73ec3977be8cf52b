import pytest

from server.hub.process import DownloadProcess
from tests.support.stand_in_hub import call_in_process


@pytest.fixture(autouse=True)
def downloads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads run in the test's process, except in slow tests."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(DownloadProcess, "call", call_in_process)
