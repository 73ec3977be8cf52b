"""A LoRA scale without bounds makes no numbers. What it leaves in the cells may not fail the requests of others."""

import asyncio
from pathlib import Path

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Adapters, Request
from server.errors import InternalError
from server.pool.spec import ScaledFile
from tests.model.native_fixtures import GREEDY, load, prompt_tokens
from tests.unit.engine.builders import run

MODELS = Path(__file__).resolve().parents[2] / "models"
TEXT = "What is 2 plus 3?\n2 plus 3 is 5.\n" * 30
"""The model is so sure of what follows, 2000 to 1, that no other order of sums changes it."""
WITHOUT_BOUNDS = ((0, 1e5),)


@pytest.mark.parametrize(("kv_unified", "flash_attn"), [(False, "on"), (True, "off")])
async def test_others_get_what_they_get_alone(kv_unified: bool, flash_attn: str) -> None:
    lora = ScaledFile(MODELS / "demo-lora.gguf", 0.0)
    native = {"n_ctx": 2048, "n_parallel": 2, "kv_unified": kv_unified, "flash_attn": flash_attn}
    weights = load(MODELS / "demo.gguf", lora=(lora,), **native)
    runner = weights.runner()
    engine = Engine([runner], EngineParams(check_integrity=True), asyncio.get_running_loop())

    def asked(n_tokens: int, adapters: Adapters = ()) -> Request:
        tokens = prompt_tokens(runner.vocab, TEXT)[:n_tokens]
        return Request(f"{n_tokens}", tokens, GREEDY, max_tokens=8, adapters=adapters)

    try:
        for n in (40, 300):
            (alone,) = await run(engine, asked(n))
            bad, beside = await run(engine, asked(90, WITHOUT_BOUNDS), asked(n))
            (after,) = await run(engine, asked(n))
            assert isinstance(bad.error, InternalError)
            assert [reply.error for reply in (alone, beside, after)] == [None] * 3
            assert beside.text == after.text == alone.text
    finally:
        await engine.close()
        weights.close()
