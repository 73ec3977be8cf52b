"""Renders templates in sandboxed processes that can be stopped.

A template is an untrusted program. The sandbox of `jinja` denies access to Python, but a template can compute without
end, or hold the GIL in a single operation. Here this only ends a process, which is replaced, and never blocks the event
loop or the step threads.
"""

import pickle
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from server.sandbox.process import Processes, Stopped, WorkLimits
from server.templates.rendering import FAULTS, RenderFault, RenderStopped

ANSWERER = "server.templates.jinja:answerer"
_CALL = b"c"


class IsolatedRenderer(Processes):
    """Implements `rendering.Renderer` in sandbox processes."""

    def __init__(self, limits: WorkLimits | None = None) -> None:
        super().__init__(ANSWERER, limits or WorkLimits())

    def render(self, source: str, *arguments: Mapping[str, Any]) -> list[str]:
        """Render all arguments in one request, because a round trip takes as long as rendering a short chat."""
        try:
            request = pickle.dumps((source, *arguments), pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RenderFault("RecursionError: the template's arguments nest too deeply") from error
        try:
            kind, answer = self.ask(_CALL, request)
        except Stopped as stopped:
            raise RenderStopped(str(stopped)) from stopped
        text = answer.decode("utf-8", "surrogatepass")
        if kind in FAULTS:
            raise FAULTS[kind](text)
        sizes, _, texts = text.partition("\n")
        ends = accumulate(map(int, sizes.split()), initial=0)
        return [texts[start:end] for start, end in pairwise(ends)]
