"""Fixtures of the tests over real models."""

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
