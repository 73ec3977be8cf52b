"""Renders templates in separate processes that can be stopped; they run `isolated_worker`.

A template is a program that is part of a model. The sandbox of `jinja` denies it Python, but it can compute without
end, or within one operation that holds the interpreter lock. Here that costs a process, which is replaced, and never
blocks the event loop or the step threads.
"""

import pickle
from collections.abc import Mapping
from typing import Any

from server.sandbox.process import Process, Processes, Stopped, WorkLimits
from server.sandbox.worker import FAULT
from server.templates.rendering import (
    BROKEN,
    CHECK,
    OPENED,
    REFUSAL,
    RENDER,
    TEXT,
    RenderFault,
    RenderRefusal,
    RenderStopped,
    TemplateBroken,
)

ANSWERER = "server.templates.isolated_worker:answerer"


class IsolatedRenderer:
    """Implements `rendering.Renderer` in sandbox processes."""

    def __init__(self, limits: WorkLimits | None = None) -> None:
        self._processes = Processes(ANSWERER, limits or WorkLimits())

    def warm(self) -> None:
        """Start a process now, so that the first rendering does not wait for it."""
        self._processes.warm()

    def check(self, source: str) -> None:
        """Compile the source in a process."""
        self._ask(CHECK, (source,))

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render in a process."""
        return self._ask(RENDER, (source, dict(arguments)))

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Render both in one request: the round trip takes as long as rendering a short chat."""
        n_chars, _, texts = self._ask(OPENED, (source, dict(arguments))).partition("\n")
        return texts[: int(n_chars)], texts[int(n_chars) :]

    @property
    def at_work(self) -> list[Process]:
        """Return the processes that are rendering."""
        return self._processes.at_work

    def close(self) -> None:
        """End the processes; busy ones end after their work."""
        self._processes.close()

    def _ask(self, what: bytes, given: tuple[Any, ...]) -> str:
        try:
            request = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RenderFault("RecursionError: the template's arguments nest too deeply") from error
        try:
            kind, answer = self._processes.ask(what, request)
        except Stopped as stopped:
            raise RenderStopped(str(stopped)) from stopped
        text = answer.decode("utf-8", "surrogatepass")
        if kind == TEXT:
            return text
        raise {REFUSAL: RenderRefusal, BROKEN: TemplateBroken, FAULT: RenderFault}[kind](text)
