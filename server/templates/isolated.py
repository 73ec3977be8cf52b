"""Templates rendered by processes of their own, each of which can be stopped: `isolated_worker` is what runs there.

A template is a program that comes with a model. The sandbox of `jinja` keeps it from Python, but not from computing
without end, nor within one operation that holds the interpreter: here that costs a process that is replaced, and
never the event loop or the step threads.
"""

import pickle
from collections.abc import Mapping
from typing import Any

from server.sandbox.process import Process, Processes, Stopped, WorkLimits
from server.sandbox.worker import FAULT
from server.templates.isolated_worker import BROKEN, CHECK, OPENED, REFUSAL, RENDER, TEXT
from server.templates.rendering import RenderFault, RenderRefusal, RenderStopped, TemplateBroken

ANSWERER = "server.templates.isolated_worker:answerer"


class IsolatedRenderer:
    """`rendering.Renderer` in confined processes."""

    def __init__(self, limits: WorkLimits | None = None) -> None:
        self._processes = Processes(ANSWERER, limits or WorkLimits())

    def check(self, source: str) -> None:
        """Compile it there."""
        self._ask(CHECK, (source,))

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render it there."""
        return self._ask(RENDER, (source, dict(arguments)))

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Render both there, with one question: the way takes as long as a short chat's rendering."""
        n_chars, _, texts = self._ask(OPENED, (source, dict(arguments))).partition("\n")
        return texts[: int(n_chars)], texts[int(n_chars) :]

    @property
    def at_work(self) -> list[Process]:
        """The processes that render now."""
        return self._processes.at_work

    def close(self) -> None:
        """End the processes; those at work end with their work."""
        self._processes.close()

    def _ask(self, what: bytes, given: tuple[Any, ...]) -> str:
        try:
            request = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RenderFault("RecursionError: what the template is given nests too deeply") from error
        try:
            kind, answer = self._processes.ask(what, request)
        except Stopped as stopped:
            raise RenderStopped(str(stopped)) from stopped
        text = answer.decode("utf-8", "surrogatepass")
        if kind == TEXT:
            return text
        raise {REFUSAL: RenderRefusal, BROKEN: TemplateBroken, FAULT: RenderFault}[kind](text)
