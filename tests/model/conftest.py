"""Fixtures for tests with native models."""

from collections.abc import Iterator

import pytest

from tests.model.native_fixtures import (  # noqa: F401
    gguf_folder,
    prefilled,
    recurrent_path,
    runner,
    swa_path,
    tiny_path,
    tiny_runner,
    tiny_vocab,
)
from tests.support.real_server import ROOT, RealServer, llamapool_config


@pytest.fixture(scope="session")
def default_server() -> Iterator[RealServer]:
    """A server with the shipped `config/default.yaml`, on a free port."""
    with llamapool_config(ROOT / "config" / "default.yaml", "-t", "1") as running:
        yield running
