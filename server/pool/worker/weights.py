"""A loaded model whose weights are in its own process: `server.pool.protocols.Weights`, a reader of media, a loader."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from server.engine.media import MediaPrompt
from server.engine.runner_api import EmbeddingRunner, Runner
from server.errors import InternalError
from server.media.bitmap import Bitmap, BitmapKind
from server.pool.footprint import Fit, Footprint, Memory
from server.pool.protocols import Loader, MediaReader, ModelInfo, Vocabulary
from server.pool.spec import ModelSpec
from server.pool.worker.codec import DistantChunk
from server.pool.worker.engines import IsolatedEmbedder, IsolatedEngine
from server.pool.worker.facts import LoadedFacts, ReaderFacts
from server.pool.worker.supervisor import WorkerSupervisor
from server.vocab import Vocab


class IsolatedWeights:
    """`server.pool.protocols.Weights` of a worker process."""

    def __init__(
        self, supervisor: WorkerSupervisor, spec: ModelSpec, facts: LoadedFacts, vocabulary: Vocabulary
    ) -> None:
        self.supervisor, self._vocabulary = supervisor, vocabulary
        supervisor.vocab = vocabulary.vocab
        self.info: ModelInfo = facts.info
        self._footprint = facts.footprint
        reader, generator, embedder = facts.reader, facts.generator, facts.embedder
        self.media: MediaReader | None = None if reader is None else IsolatedReader(supervisor, reader)
        self.generator = None if generator is None else IsolatedEngine(supervisor, generator, spec.engine)
        self.embedder = None if embedder is None else IsolatedEmbedder(supervisor, embedder, facts.info.n_vocab)

    @property
    def vocab(self) -> Vocab:
        """The file's, in this process."""
        return self._vocabulary.vocab

    def runner(self) -> Runner:
        """None in this process."""
        raise InternalError("the model is in another process")

    def embedding_runner(self) -> EmbeddingRunner:
        """None in this process."""
        raise InternalError("the model is in another process")

    def footprint(self) -> Footprint:
        """The memory that the process measured."""
        return self._footprint

    def close(self) -> None:
        """End the process, which frees all; blocking."""
        self.supervisor.in_thread(self.supervisor.close())
        self._vocabulary.close()


class IsolatedReader:
    """`server.pool.protocols.MediaReader`: asks the worker, which keeps the tokenized media."""

    def __init__(self, supervisor: WorkerSupervisor, facts: ReaderFacts) -> None:
        self._core = supervisor
        self.kinds: frozenset[BitmapKind] = facts.kinds
        self.marker, self.sample_rate, self.fingerprint = facts.marker, facts.sample_rate, facts.fingerprint

    async def ready(self) -> None:
        """Wait until there is a process."""
        await self._core.there()

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        """A prompt of texts and media; blocking."""
        supervisor, restarts = self._core, self._core.n_restarts
        tokens, spans = supervisor.in_thread(supervisor.call("tokenize", list(parts), add_special, parse_special))
        found = (
            replace(span, chunk=DistantChunk(number, restarts, key, causal=causal, forget=self._forget))
            for span, number, key, causal in spans
        )
        return MediaPrompt(tokens, tuple(found))

    def _forget(self, number: int, restarts: int) -> None:
        """In any thread."""
        if restarts == self._core.n_restarts:
            self._core.post_soon("forget", number)

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        """How many tokens `tokenize` would give; blocking."""
        supervisor = self._core
        return int(supervisor.in_thread(supervisor.call("count", list(parts), add_special, parse_special)))


class IsolatedLoader:
    """`server.pool.protocols.Loader` for one load of one model: everything that could crash runs in the worker. A
    description reads the header only, with our own code; a vocabulary is read after the process has survived it.
    """

    def __init__(self, here: Loader, supervisor: WorkerSupervisor, *, prepares: bool) -> None:
        """`prepares`: whether its grammars may be made ready, which takes the interpreter there a while."""
        self._here, self._core, self._prepares = here, supervisor, prepares

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        """In the process."""
        fit: Fit = self._core.in_thread(self._core.measure(_marked(spec), granted or {}))
        return fit

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> IsolatedWeights:
        """Start it; only the vocabulary is read here, too."""
        supervisor = self._core
        told = supervisor.load(spec, Fit(spec), progress, prepares=self._prepares)
        facts: LoadedFacts = supervisor.in_thread(told)
        return IsolatedWeights(supervisor, spec, facts, self._here.vocabulary(spec))

    def abandon(self) -> None:
        """Kill the process of an unwanted load."""
        self._core.abandon()

    async def abandoned(self) -> None:
        """Returns when that has been done."""
        await self._core.abandoned()

    def check_progress(self, limit_s: float) -> None:
        """To be called now and then: a process that gets no further for `limit_s` seconds is ended."""
        self._core.check_progress(limit_s)

    def least(self, spec: ModelSpec) -> Footprint:
        """In the process."""
        least: Footprint = self._core.in_thread(self._core.measure_least(spec))
        return least

    def memory(self) -> Mapping[str, Memory]:
        """Ask the process: to look at a GPU's memory opens a context on it."""
        return self._core.in_thread(self._core.memory())  # type: ignore[no-any-return]

    def uses_devices(self, spec: ModelSpec) -> bool:
        """As here."""
        return self._here.uses_devices(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        """As here."""
        return self._here.describe(spec)

    def vocabulary(self, spec: ModelSpec) -> Vocabulary:
        """As here."""
        return self._here.vocabulary(spec)

    def media(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        """As here."""
        return self._here.media(spec)


def _marked(spec: ModelSpec) -> ModelSpec:
    """With a marker of media that is the same in every process of the model."""
    if spec.mmproj is None or spec.native.media_marker:
        return spec
    return replace(spec, native=replace(spec.native, media_marker=f"<__media_{secrets.token_hex(16)}__>"))
