"""What is linked into the peer, and what counts as others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peer
from benchmarks.noise import Others, _tree


def test_an_installation_without_a_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    with pytest.raises(peer.PeerError, match=r"without libllama-common\.so"):
        peer.build(tmp_path / "built")


def test_a_peer_that_was_built_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer, "installed_libraries", lambda: (tmp_path,))
    (tmp_path / peer.SERVER).touch()
    assert peer.build(tmp_path) == tmp_path / peer.SERVER


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_servers_children_are_the_servers() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= set(_tree(os.getpid()))
        assert 0.0 <= Others(child.pid).share() <= 1.0
        child.communicate(b"\n")
    assert child.pid not in _tree(os.getpid())
