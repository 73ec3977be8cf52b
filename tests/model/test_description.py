"""What is told of a model without loading it is what is told of it when it is loaded."""

from pathlib import Path

import pytest

from server.llama.loader import LlamaLoader
from server.pool.spec import ModelSpec
from tests.support.real_server import ROOT

FACTS = (
    *("ftype", "n_vocab", "n_ctx_train", "n_embd", "n_params", "size", "generates", "embeds"),
    *("chat_template", "built_in_template", "metadata"),
)


@pytest.mark.parametrize("name", ["demo.gguf", "demo-embed.gguf"])
def test_the_header_says_what_the_library_says(name: str) -> None:
    spec, loader = ModelSpec("m", Path(ROOT / "models" / name)), LlamaLoader()
    described = loader.describe(spec)
    weights = loader.load(spec, lambda _: True)
    try:
        known = weights.info
    finally:
        weights.close()
    for fact in FACTS:
        assert getattr(described, fact) == getattr(known, fact), fact
