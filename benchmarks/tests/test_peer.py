"""Building llama-server as the peer, and the CPU share of other processes."""

from pathlib import Path

import pytest

from benchmarks.noise import Others
from tests.support import peer


def test_build_fails_if_a_library_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    with pytest.raises(peer.PeerError, match=r"without libllama-common\.so"):
        peer.build(tmp_path / "built")


def test_build_returns_an_existing_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer, "installed_libraries", lambda: (tmp_path,))
    (tmp_path / peer.SERVER).touch()
    assert peer.build(tmp_path) == tmp_path / peer.SERVER


@pytest.mark.parametrize(
    ("taken_s", "share"),
    [
        pytest.param(1.0, 0.25, id="share of all CPUs"),
        pytest.param(-0.01, 0.0, id="ticks of the server that the total does not include yet"),
        pytest.param(9.0, 1.0, id="a tick longer than the measurement"),
    ],
)
def test_cpu_time_of_others_is_a_share_of_all_cpus(
    monkeypatch: pytest.MonkeyPatch, taken_s: float, share: float
) -> None:
    clock, taken = iter((100.0, 102.0)), iter((40.0, 40.0 + taken_s))
    monkeypatch.setattr("benchmarks.noise.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("benchmarks.noise.os.cpu_count", lambda: 2)
    monkeypatch.setattr(Others, "_taken_s", lambda _: next(taken))
    assert Others().share() == share
