"""What is linked into the peer, and what counts as others."""

from pathlib import Path

import pytest

from benchmarks.noise import Others
from tests.support import peer


def test_an_installation_without_a_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    with pytest.raises(peer.PeerError, match=r"without libllama-common\.so"):
        peer.build(tmp_path / "built")


def test_a_peer_that_was_built_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer, "installed_libraries", lambda: (tmp_path,))
    (tmp_path / peer.SERVER).touch()
    assert peer.build(tmp_path) == tmp_path / peer.SERVER


@pytest.mark.parametrize(
    ("taken_s", "share"),
    [
        pytest.param(1.0, 0.25, id="of all processors"),
        pytest.param(-0.01, 0.0, id="ticks of the server's that the whole does not count yet"),
        pytest.param(9.0, 1.0, id="a tick that was longer than what was measured"),
    ],
)
def test_what_others_took_is_a_share(monkeypatch: pytest.MonkeyPatch, taken_s: float, share: float) -> None:
    clock, taken = iter((100.0, 102.0)), iter((40.0, 40.0 + taken_s))
    monkeypatch.setattr("benchmarks.noise.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("benchmarks.noise.os.cpu_count", lambda: 2)
    monkeypatch.setattr(Others, "_taken_s", lambda _: next(taken))
    assert Others().share() == share
