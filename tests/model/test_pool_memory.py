"""The pool's budget with native weights: of ten models there is room for three, and what is loaded at any time keeps to
it, by the library's own count."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.load_queue import PoolLimits
from server.pool.loading import Factories
from server.pool.memory import HOST, Amount, Budget, totals
from server.pool.pool import Pool
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec
from tests.support.ggufs import MODELS, gguf_file

WRITERS = ("plain", "experts", "recurrent", "hybrid", "sliding-window", "repo-fim", "no-fim", "no-template")
EMBEDDERS = ("bert", "embed-last")
KINDS = (*WRITERS, *EMBEDDERS)
N_CLIENTS, N_EACH = 6, 8
FACTORIES = Factories(template=lambda info, spec: cast(Any, object()))


class Counted(LlamaLoader):
    """Remembers what it loaded."""

    def __init__(self) -> None:
        self.loaded: list[Weights] = []

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Weights:
        self.loaded.append(super().load(spec, progress))
        return self.loaded[-1]

    @property
    def held(self) -> int:
        """Bytes of what has not been freed."""
        open_ones = [w for w in self.loaded if isinstance(w, LlamaWeights) and w._model is not None]
        return sum(totals(weights.footprint()).get(HOST, 0) for weights in open_ones)


async def test_models_under_load_keep_to_the_budget(gguf_folder: Path) -> None:
    loader, native = Counted(), LoadParams(n_parallel=2, fit_ctx=256, n_threads=1, warmup=False)
    specs = [ModelSpec(kind, gguf_file(gguf_folder, MODELS[kind]), native=native) for kind in KINDS]
    least = sorted(totals(loader.least(spec))[HOST] for spec in specs)
    budget = sum(least[-2:]) + least[0]
    limits = PoolLimits(budget=Budget(Amount(budget)), patience_s=0.0)
    pool = Pool(specs, loader, limits, factories=FACTORIES)
    await pool.start()
    most = 0

    async def client(seed: int) -> None:
        nonlocal most
        chance = random.Random(seed)
        for _ in range(N_EACH):
            kind = chance.choice(KINDS)
            task = "embed" if kind in EMBEDDERS else "generate"
            with await pool.acquire(kind, task=cast(Any, task)) as lease:
                most = max(most, loader.held)
                pool.check_integrity()
                assert lease.model.spec.id == kind

    async with asyncio.timeout(60):
        await asyncio.gather(*map(client, range(N_CLIENTS)))
        states = pool.states()
        await pool.close()
    assert least[-1] < most <= budget
    assert len(loader.loaded) > len(KINDS), "nobody had to leave"
    assert loader.held == 0
    assert not any(state.failure for state in states)
