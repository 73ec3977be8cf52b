"""Loads the model of a start while the application is imported and built.

The native part of a load releases the GIL, and templates are rendered in another process, so both overlap with
Python's imports. The pool still decides about memory and order: it asks this `Loader` as any other, and gets the
finished results if they are the ones that it asks for. docs/adr/0018-early-load.md says why.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from server.media.bitmap import BitmapKind
from server.options.server import ServerSettings
from server.pool.budget import Budget
from server.pool.footprint import Fit, Footprint, Memory, totals
from server.pool.load.loading import PROGRESS_INTERVAL_S, chat_template
from server.pool.protocols import Loader, ModelInfo, Vocabulary, Weights
from server.pool.spec import ModelSpec
from server.templates.template import ChatTemplate

if TYPE_CHECKING:
    from server.templates.isolated import IsolatedRenderer  # not on every system


class EarlyLoad:
    """A `Loader` that has begun to load one model. Thread-safe."""

    def __init__(
        self, loader: Loader, spec: ModelSpec, budget: Budget, renderer: "IsolatedRenderer | None" = None
    ) -> None:
        """Begin to load `spec` within `budget`. `renderer` is used for its template, and belongs to the caller."""
        self.renderer = renderer
        self._loader, self._spec, self._budget = loader, spec, budget
        self._fraction = 0.0
        self._unwanted = threading.Event()
        thread = ThreadPoolExecutor(1, thread_name_prefix="early-load")
        self._memory = thread.submit(loader.memory)
        self._least = thread.submit(loader.least, spec)
        self._fit = thread.submit(self._fitted)
        self._weights: Future[Weights] | None = thread.submit(self._loaded)
        self._template = thread.submit(self._compiled, self._weights)
        thread.shutdown(wait=False)

    def _fitted(self) -> Fit:
        return self._loader.fit(self._spec, self._budget.limits(self._memory.result()))

    def _loaded(self) -> Weights:
        return self._loader.load(self._fit.result().spec, self._progress)

    def _compiled(self, weights: Future[Weights]) -> ChatTemplate:
        return chat_template(weights.result().info, self._spec, self.renderer)

    def _progress(self, fraction: float) -> bool:
        self._fraction = fraction
        return not self._unwanted.is_set()

    def close(self) -> None:
        """Stop the load, and free the weights unless the pool took them. Blocks until the library has stopped."""
        self._unwanted.set()
        weights, self._weights = self._weights, None
        if weights is not None and not weights.cancel():
            with contextlib.suppress(Exception):
                weights.result().close()

    def memory(self) -> Mapping[str, Memory]:
        """See `Loader`. Until the pool has taken the weights, return the memory before the early load."""
        return self._memory.result() if self._weights is not None else self._loader.memory()

    def least(self, spec: ModelSpec) -> Footprint:
        """See `Loader`."""
        is_early = spec == self._spec and self._weights is not None and self._least.exception() is None
        return self._least.result() if is_early else self._loader.least(spec)

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        """See `Loader`. Return the early choice if `granted` has room for it; otherwise give up the early load."""
        if spec == self._spec and self._weights is not None:
            if self._fit.exception() is None:
                early = self._fit.result()
                if all(n <= (granted or {}).get(device, n) for device, n in totals(early.footprint).items()):
                    return early
            self.close()
        return self._loader.fit(spec, granted)

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Weights:
        """See `Loader`."""
        early = self._weights
        if early is None or self._fit.exception() is not None or spec != self._fit.result().spec:
            return self._loader.load(spec, progress)
        while not early.done():
            if not progress(self._fraction):
                self._unwanted.set()
            with contextlib.suppress(TimeoutError):
                early.exception(PROGRESS_INTERVAL_S)
        self._weights = None
        return early.result()

    def template(self, info: ModelInfo, spec: ModelSpec) -> ChatTemplate:
        """Return the template of a model, the early one if it is that model's. Raises `LlamapoolError`."""
        if spec == self._spec and not self._template.cancelled() and self._template.exception() is None:
            return self._template.result()
        return chat_template(info, spec, self.renderer)

    def uses_devices(self, spec: ModelSpec) -> bool:
        """See `Loader`."""
        return self._loader.uses_devices(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        """See `Loader`."""
        return self._loader.describe(spec)

    def vocabulary(self, spec: ModelSpec) -> Vocabulary:
        """See `Loader`."""
        return self._loader.vocabulary(spec)

    def media(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        """See `Loader`."""
        return self._loader.media(spec)


def begin_early_load(specs: Sequence[ModelSpec], server: ServerSettings) -> EarlyLoad | None:
    """Begin to load the model that is loaded at the start.

    Return None if there are several such models or none, its files are missing, or it runs in a process of its own.
    """
    at_start = [spec for spec in specs if spec.load == "startup"]
    if len(at_start) != 1 or at_start[0].missing or at_start[0].isolation == "process" or server.rpc:
        return None
    from server.llama.loader import open_loader  # before the thread starts, so that no two threads import it

    loader = open_loader()
    if at_start[0].isolation == "auto" and loader.uses_devices(at_start[0]):
        return None
    renderer = isolated_renderer()
    if renderer is not None:
        renderer.warm()
    return EarlyLoad(loader, at_start[0], server.budget, renderer)


def isolated_renderer() -> "IsolatedRenderer | None":
    """Return a renderer of templates in sandbox processes; None if the system has no such processes."""
    if os.name != "posix":
        return None
    from server.templates.isolated import IsolatedRenderer

    return IsolatedRenderer()
