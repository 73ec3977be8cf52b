"""Fixtures of the tests over real models."""

from collections.abc import Iterator

import pytest

from tests.model.native_fixtures import (  # noqa: F401
    gguf_folder,
    ready,
    recurrent_path,
    runner,
    runner_of,
    swa_path,
    tiny_path,
    tiny_vocab,
)
from tests.support.real_server import ROOT, RealServer, llamapool_config


@pytest.fixture(scope="session")
def default_server() -> Iterator[RealServer]:
    """`config/default.yaml` as it ships, on a free port."""
    with llamapool_config(ROOT / "config" / "default.yaml", "-t", "1") as running:
        yield running
