"""A loaded model, and the leases of requests on it."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from server.engine.runner_api import EmbeddingRunner, Runner
from server.engine.snapshots import SlotSnapshot
from server.engine.stats import EngineStats, combined
from server.errors import NotSupported
from server.pool.memory import Fit
from server.pool.protocols import MediaReader, ModelInfo, Weights
from server.pool.spec import ModelSpec
from server.structured.grammar.sandbox import Sandbox
from server.templates.template import ChatTemplate
from server.vocab import Vocab

if TYPE_CHECKING:
    from server.engine.embedding import EmbeddingEngine
    from server.pool.block_events import ReportingEngine
    from server.pool.worker.proxies import IsolatedEmbedder, IsolatedEngine
    from server.structured.grammar.compiler import GrammarCompiler  # imports llguidance, which is slow

Generator: TypeAlias = "ReportingEngine | IsolatedEngine"
"""A generating engine, in this process or in a worker."""
Embedder: TypeAlias = "EmbeddingEngine | IsolatedEmbedder"
"""An embedding engine, in this process or in a worker."""

log = logging.getLogger(__name__)
_IDLE_S = 0.1  # between calls of `quiet` in `LoadedModel.prepare_grammar`

GrammarFactory = Callable[[Vocab], "GrammarCompiler"]


def compile_grammars(vocab: Vocab, sandbox: Sandbox | None = None) -> "GrammarCompiler":
    """Return a grammar compiler for `vocab`; imports llguidance on first use. ``sandbox`` compiles grammars of clients
    first; without one the compiler is only for trusted grammars.
    """
    from server.structured.grammar.compiler import GrammarCompiler

    return GrammarCompiler(vocab, sandbox)


def cannot_embed(model: str) -> NotSupported:
    """Return the error of a model that only generates, or is not loaded for embedding."""
    return NotSupported(
        "This server does not support embeddings. Start it with `--embeddings`"
        f" (in the configuration: `embedding: true` for model '{model}')"
    )


def cannot_rerank(model: str) -> NotSupported:
    """Return the error of a model whose pooling is not rank."""
    return NotSupported(
        "This server does not support reranking. Start it with `--reranking`"
        f" (in the configuration: `reranking: true` for a model that is a reranker; '{model}' is not loaded as one)"
    )


@dataclass(slots=True)
class LoadedModel:
    """Weights with their engines, template and grammar compiler. The pool creates and frees it.

    It has an engine that generates, an embedding engine, or both. ``runners`` and ``embedders`` are contexts without
    an engine.
    """

    spec: ModelSpec
    info: ModelInfo
    vocab: Vocab
    generator: "Generator | None"
    embedding: "Embedder | None"
    template: ChatTemplate
    weights: Weights
    fit: Fit
    loaded_at: float  # unix seconds
    make_grammar: GrammarFactory = compile_grammars
    runners: list[Runner] = field(default_factory=list)
    embedders: list[EmbeddingRunner] = field(default_factory=list)
    leases: "set[Lease]" = field(default_factory=set)
    vacant: asyncio.Event = field(default_factory=asyncio.Event)  # set while there is no lease
    _grammar: "GrammarCompiler | None" = None
    _grammar_lock: threading.Lock = field(default_factory=threading.Lock)
    _preparing: threading.Thread | None = None
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.vacant.set()

    @property
    def engine(self) -> Generator:
        """The generating engine. Raises `NotSupported`."""
        if self.generator is None:
            raise NotSupported(  # the first two sentences are llama-server's
                "This server does not support completions. Start it without `--embeddings`. "
                f"Model '{self.spec.id}' embeds or reranks and does not generate: name another one"
            )
        return self.generator

    @property
    def embedder(self) -> Embedder:
        """The embedding engine. Raises `NotSupported`."""
        if self.embedding is None:
            raise cannot_embed(self.spec.id)
        return self.embedding

    @property
    def media(self) -> MediaReader | None:
        """The media reader; None if the model reads text only."""
        return self.weights.media

    @property
    def engines(self) -> "list[Generator | Embedder]":
        """One or two; the first is the one whose slots are shown."""
        return [engine for engine in (self.generator, self.embedding) if engine is not None]

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self.engines)

    @property
    def failure(self) -> str:
        """Why an instance of an engine no longer steps; "" while all do."""
        return next((engine.failure for engine in self.engines if engine.failure), "")

    @property
    def serves(self) -> bool:
        """Whether every engine has an instance that still steps."""
        return all(engine.serves for engine in self.engines)

    @property
    def stats(self) -> EngineStats:
        """Totals since the load, also after `close`."""
        return reduce(combined, (engine.stats for engine in self.engines))

    @property
    def n_ctx_seq(self) -> int:
        """Tokens of context of one slot."""
        return self.engines[0].n_ctx_seq

    @property
    def n_slots(self) -> int:
        return self.engines[0].n_slots

    def slots(self) -> list[SlotSnapshot]:
        return self.engines[0].slots()

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them and free the contexts; the weights stay."""
        self._closing.set()
        await asyncio.gather(*(engine.close(drain_s) for engine in self.engines))

    def free(self) -> None:
        """Free contexts without an engine, and then the weights. Call it after `close`; blocks."""
        self._closing.set()
        if self._preparing is not None:
            self._preparing.join()  # it reads the vocabulary
        with contextlib.ExitStack() as stack:
            stack.callback(self.weights.close)
            for runner in self.runners:
                stack.callback(runner.close)
            for embedder in self.embedders:
                stack.callback(embedder.close)

    @property
    def grammar(self) -> "GrammarCompiler":
        """The compiler of constraints; expensive, so created on first use, by any thread."""
        if self._grammar is None:
            with self._grammar_lock:
                if self._grammar is None:
                    self._grammar = self.make_grammar(self.vocab)
        return self._grammar

    def prepare_grammar(self, quiet: Callable[[], bool]) -> None:
        """Create the grammar compiler in a thread when `quiet` returns True, instead of at the first constraint.

        llguidance holds the GIL for up to half a second. At startup, the native library creates contexts meanwhile.
        `quiet` is called every `_IDLE_S` seconds, as a busy server has only short pauses between requests. The thread
        also ends after the main thread: the interpreter waits for it, and a server that is forced to exit closes no
        model.
        """

        def prepare() -> None:
            while not self._closing.is_set() and threading.main_thread().is_alive():
                if quiet():
                    try:
                        self.grammar.prepare()
                    except Exception:  # constrained requests get the error; others do not need the compiler
                        log.warning(
                            "model '%s': no grammar can be compiled for its vocabulary; "
                            "constrained requests are refused",
                            self.spec.id,
                            exc_info=True,
                        )
                    return
                self._closing.wait(_IDLE_S)

        self._preparing = threading.Thread(target=prepare, name="grammar")
        self._preparing.start()


class Lease(contextlib.AbstractContextManager["Lease"]):
    """Prevents the model's weights and vocabulary from being freed until it is released.

    The request that acquired it releases it, on the event loop. A request has one lease: a second ``acquire`` may wait
    for ever when ``models_max`` is reached.
    """

    def __init__(self, model: LoadedModel, on_release: Callable[["Lease"], None]) -> None:
        self.model = model
        self.keep_alive_s: float | None = None
        """Idle seconds after which the model is put to sleep; negative = never, None = unchanged. Applies until the
        model is freed.
        """
        self._on_release: Callable[[Lease], None] | None = on_release

    @property
    def released(self) -> bool:
        return self._on_release is None

    def release(self) -> None:
        """Release the lease; a second call does nothing."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release(self)

    def __exit__(self, *_: object) -> None:
        self.release()
