"""Renders templates in separate processes that can be stopped.

A template is a program that is part of a model. The sandbox of `jinja` denies it Python, but it can compute without
end, or within one operation that holds the interpreter lock. Here that costs a process, which is replaced, and never
blocks the event loop or the step threads.
"""

import pickle
from collections.abc import Mapping
from typing import Any

from server.sandbox.process import Process, Processes, Stopped, WorkLimits
from server.templates.rendering import FAULTS, RenderFault, RenderStopped

ANSWERER = "server.templates.jinja:answerer"
_CALL = b"c"


class IsolatedRenderer:
    """Implements `rendering.Renderer` in sandbox processes."""

    def __init__(self, limits: WorkLimits | None = None) -> None:
        self._processes = Processes(ANSWERER, limits or WorkLimits())

    def warm(self) -> None:
        """Start a process now, so that the first rendering does not wait for it."""
        self._processes.warm()

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render in a process."""
        return self._ask("render", source, dict(arguments))

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Render both in one request: the round trip takes as long as rendering a short chat."""
        n_chars, _, texts = self._ask("render_opened", source, dict(arguments)).partition("\n")
        return texts[: int(n_chars)], texts[int(n_chars) :]

    @property
    def at_work(self) -> list[Process]:
        """Return the processes that are rendering."""
        return self._processes.at_work

    def close(self) -> None:
        """End the processes; busy ones end after their work."""
        self._processes.close()

    def _ask(self, method: str, *given: Any) -> str:
        """Call a method of the renderer in a process, see `jinja.answerer`."""
        try:
            request = pickle.dumps((method, *given), pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RenderFault("RecursionError: the template's arguments nest too deeply") from error
        try:
            kind, answer = self._processes.ask(_CALL, request)
        except Stopped as stopped:
            raise RenderStopped(str(stopped)) from stopped
        text = answer.decode("utf-8", "surrogatepass")
        if kind in FAULTS:
            raise FAULTS[kind](text)
        return text
