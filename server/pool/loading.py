"""A load of a model, which can be cancelled. See `Load`."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from server.engine.cache.prefix_cache import MIB
from server.engine.embedding import EmbeddingEngine
from server.engine.params import EngineParams
from server.engine.runner_api import EmbeddingRunner, Runner
from server.errors import InvalidRequest, ModelFailed
from server.pool.block_events import ReportingEngine
from server.pool.memory import Fit, totals
from server.pool.model import GrammarFactory, LoadedModel, compile_grammars
from server.pool.protocols import Loader, ModelInfo, Weights
from server.pool.saved.state_cache import EmbeddingFolder, StateFolder
from server.pool.spec import ModelSpec, Stamps
from server.pool.worker.parent import WorkerProcess
from server.templates.rendering import Renderer
from server.templates.template import ChatTemplate

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.2  # as llama-server (tools/server/server-context.cpp, load_progress_callback)

TemplateFactory = Callable[[ModelInfo, ModelSpec], ChatTemplate]


def chat_template(info: ModelInfo, spec: ModelSpec, renderer: Renderer | None = None) -> ChatTemplate:
    """Return the configured template, otherwise the model's; without Jinja, llama.cpp's built-in equivalent. Raises
    `LlamapoolError` if there is none or it does not compile.
    """
    own = spec.chat.template is None and spec.chat.jinja
    source = info.chat_template if spec.chat.template is None else spec.chat.template
    if not spec.chat.jinja:
        if not info.built_in_template:
            raise ModelFailed(spec.id, "its chat template is none that llama.cpp has built in; leave out --no-jinja")
        source = info.built_in_template
    template = ChatTemplate(
        source,
        bos_token=info.bos_token,
        add_bos=info.add_bos,
        eos_token=info.eos_token,
        tool_source=info.chat_template_tool_use if own else "",
        default_kwargs=spec.chat.template_kwargs,
        tool_format=spec.chat.tool_format,
        renderer=renderer,
    )
    if (chat_format := template.chat_format()).doubt:
        why = "model %s: its chat template: %s; tool calls are read as those of %s (tool_format sets it)"
        log.warning(why, spec.id, chat_format.doubt, chat_format.tool_format.name)
    else:
        log.info("model %s: tool calls are read as those of %s", spec.id, chat_format.tool_format.name)
    return template


EngineFactory = Callable[[Sequence[Runner], EngineParams, asyncio.AbstractEventLoop], ReportingEngine]
EmbedderFactory = Callable[[Sequence[EmbeddingRunner], EngineParams, asyncio.AbstractEventLoop], EmbeddingEngine]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Factories:
    """The factories of a loaded model's parts."""

    engine: EngineFactory = ReportingEngine
    embedder: EmbedderFactory = EmbeddingEngine
    template: TemplateFactory = chat_template
    grammar: GrammarFactory = compile_grammars


@dataclass(slots=True)
class Load:
    """One load of one model. `fit` and `run` are called in a thread, `cancel` in any thread."""

    spec: ModelSpec
    loader: Loader
    factories: Factories
    report: Callable[[float], None]  # called in the thread with 0..1, at most every `PROGRESS_INTERVAL_S` besides 1
    quiet: Callable[[], bool]  # whether no model has work
    granted: Mapping[str, int] = field(default_factory=dict)  # limits in bytes by device
    before: Fit | None = None  # of the last load
    stamps: Stamps = field(default_factory=list)  # of the files at the last load; updated by `fit`
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _reported_at: float = -inf

    @property
    def cancelled(self) -> bool:
        """Whether the load was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop the loader at its next progress call, or kill the worker process."""
        self._cancelled.set()
        if isinstance(self.loader, WorkerProcess):
            self.loader.abandon()

    def fit(self) -> Fit:
        """Choose parameters that fit the memory, for `run`; blocks. Raises `ModelFailed`."""
        stamps_before, self.stamps = self.stamps, self.spec.stamps()
        fit = self.before if self.stamps == stamps_before else None
        if fit is None or not self._fits_again(fit):
            fit = self.loader.fit(self.spec, self.granted)
        for note in fit.notes:
            log.info("model '%s': %s", self.spec.id, note)
        self.check_wanted()
        return fit

    def _fits_again(self, before: Fit) -> bool:
        """Return whether the parameters of the last load were not reduced and still fit. Then none are chosen again."""
        memory, reserve = self.loader.memory(), max(self.spec.native.fit_target) << 20
        had_other_adapters = before.spec.native.lora != self.spec.native.lora
        return not (before.notes or had_other_adapters) and all(
            n <= self.granted.get(device, n) and (device not in memory or n <= memory[device].free - reserve)
            for device, n in totals(before.footprint).items()
        )

    def run(self, fit: Fit) -> LoadedModel:
        """Load the weights, ``instances`` contexts and the chat template, for `loaded`. After an error, free what was
        created.
        """
        weights = self.loader.load(fit.spec, self._progress)
        with contextlib.ExitStack() as undo:
            undo.callback(weights.close)
            model = self._model(fit, weights)
            undo.pop_all()
            undo.callback(model.free)
            if weights.info.generates and self.spec.native.warmup:
                model.prepare_grammar(self.quiet)
            for _ in range(0 if isinstance(weights, WorkerProcess) else self.spec.native.instances):
                self.check_wanted()
                if weights.info.generates:
                    model.runners.append(weights.runner())
                if weights.info.embeds:
                    self.check_wanted()
                    model.embedders.append(weights.embedding_runner())
            self.check_wanted()
            undo.pop_all()
        return model

    def _model(self, fit: Fit, weights: Weights) -> LoadedModel:
        """Return the model without contexts. Raises `ModelFailed` if its configured grammar does not compile."""
        template = self.factories.template(weights.info, self.spec)
        model = LoadedModel(
            *(self.spec, weights.info, weights.vocab, None, None, template, weights, fit),
            loaded_at=time.time(),
            make_grammar=self.factories.grammar,
        )
        if weights.info.generates and self.spec.shape is not None:
            try:
                self.spec.shape.constraint(model.grammar)
            except InvalidRequest as error:
                raise ModelFailed(self.spec.id, error.message) from None
        return model

    def check_wanted(self) -> None:
        """Raise `ModelFailed` if the load was cancelled."""
        if self.cancelled:
            raise ModelFailed(self.spec.id, "the load was cancelled")

    def _progress(self, value: float) -> bool:
        now = time.monotonic()
        if value >= 1.0 or now - self._reported_at >= PROGRESS_INTERVAL_S:
            self._reported_at = now
            self.report(value)
        return not self.cancelled

    async def loaded(self, fit: Fit, in_thread: InThread) -> LoadedModel:
        """Call `run` in a thread, and create engines for the contexts. Free the model after an error or `cancel`."""
        model: LoadedModel = await in_thread(partial(self.run, fit))
        spec, weights, loop = self.spec, model.weights, asyncio.get_running_loop()
        try:
            self.check_wanted()
            if isinstance(weights, WorkerProcess):
                model.generator, model.embedding = weights.generator, weights.embedder
            if model.runners:
                model.generator = engine = self.factories.engine(model.runners, spec.engine, loop)
                model.runners = []  # the engine frees them
                if (place := spec.engine.disk_place) is not None:
                    if isinstance(place, Path):
                        await engine.keep_media(EmbeddingFolder(spec.id, place))
                    limit, secret = spec.engine.cache_disk * MIB, spec.engine.cache_disk_secret
                    await engine.use_disk(
                        StateFolder(model, place, limit, shared=spec.engine.cache_disk_shared, secret=secret)
                    )
            if model.embedders:
                model.embedding = self.factories.embedder(model.embedders, spec.engine, loop)
                model.embedders = []
            self.check_wanted()  # it may have been cancelled while the disk cache was read
        except BaseException:
            await model.close()
            await in_thread(model.free)
            raise
        return model
