"""What is set before the native library is loaded."""

import os
import sys
from collections.abc import Iterator

import pytest

from server.llama.environment import SPIN_COUNT, SWITCH_INTERVAL_S, prepare_environment


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_waiting_is_bounded_when_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    sys.setswitchinterval(0.005)
    prepare_environment()

    assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "7")])
def test_the_users_choice_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv(name, value)
    prepare_environment()

    assert os.environ[name] == value
    assert os.environ.get("GOMP_SPINCOUNT", "") in ("", "7")
