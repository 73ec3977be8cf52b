"""The last part of a load: engines over the loaded weights. Runs on the event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.engine.embedding import EmbeddingEngine
from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.prefix_cache import MIB
from server.engine.runner_api import EmbeddingRunner, Runner
from server.errors import ModelFailed
from server.pool.load.loading import Load, LoadedParts, TemplateFactory, chat_template
from server.pool.model import GrammarFactory, LoadedModel, compile_grammars
from server.pool.protocols import Embedder, Generator, Loader
from server.pool.saved.embedding_folder import EmbeddingFolder
from server.pool.saved.state_folder import StateFolder

EngineFactory = Callable[[Sequence[Runner], EngineParams, asyncio.AbstractEventLoop], Engine]
EmbedderFactory = Callable[[Sequence[EmbeddingRunner], EngineParams, asyncio.AbstractEventLoop], EmbeddingEngine]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Factories:
    """The factories of a loaded model's parts. ``in_process``: creates the loader in a worker process, from a pickle;
    None = worker processes are unavailable.
    """

    engine: EngineFactory = Engine
    embedder: EmbedderFactory = EmbeddingEngine
    template: TemplateFactory = chat_template
    grammar: GrammarFactory = compile_grammars
    in_process: Callable[[], Loader] | None = None


async def assemble(load: Load, parts: LoadedParts, factories: Factories, in_thread: InThread) -> LoadedModel:
    """Put engines over the runners; frees the parts when that fails or the load was cancelled."""
    spec, loop = load.spec, asyncio.get_running_loop()
    generator: Generator | None = parts.generator
    embedder: Embedder | None = parts.embedder
    here: Engine | None = None
    try:
        if load.cancelled:
            raise ModelFailed(spec.id, "the load was cancelled")
        if parts.runners:
            generator = here = factories.engine(parts.runners, spec.engine, loop)
        if parts.embedders:
            embedder = factories.embedder(parts.embedders, spec.engine, loop)
    except BaseException:
        if here is not None:
            await here.close()
            parts.runners.clear()
        await in_thread(parts.close)
        raise
    model = LoadedModel(
        load.spec,
        parts.weights.info,
        parts.weights.vocab,
        generator,
        embedder,
        parts.template,
        parts.weights,
        parts.fit,
        loaded_at=time.time(),
        make_grammar=factories.grammar,
        _grammar=parts.grammar,
    )
    try:
        place = spec.engine.disk_place
        if here is not None and place is not None:
            if isinstance(place, Path):
                await here.keep_media(EmbeddingFolder(spec.id, place))
            await here.use_disk(_state_folder(model, place))
    except BaseException:
        await model.close()
        await in_thread(parts.weights.close)
        raise
    return model


def _state_folder(model: LoadedModel, place: Path | str) -> StateFolder:
    engine = model.spec.engine
    shared, secret = engine.cache_disk_shared, engine.cache_disk_secret
    return StateFolder(model, place, engine.cache_disk * MIB, shared=shared, secret=secret)
