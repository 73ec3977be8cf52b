"""The protocol of renderers: `jinja` renders in this process, `isolated` in others."""

from collections.abc import Mapping
from typing import Any, Protocol


class RenderFault(Exception):
    """A template failed on its arguments. The message is like ``TypeError: …``."""


class RenderRefusal(RenderFault):
    """The template rejected its arguments with this message, by ``raise_exception``."""


class RenderStopped(RenderFault):
    """The rendering took too much time or memory."""


class TemplateBroken(Exception):
    """The source does not compile."""


FAULTS: Mapping[bytes, type[Exception]] = {b"f": RenderFault, b"x": RenderRefusal, b"b": TemplateBroken}
"""The kinds of error replies of a rendering process. The first is `server.sandbox.worker.FAULT`."""


class Renderer(Protocol):
    """Renders templates. Thread-safe."""

    def render(self, source: str, *arguments: Mapping[str, Any]) -> list[str]:
        """Return the text for each of the arguments. Raises `RenderFault`, and `TemplateBroken` for a source that does
        not compile.
        """
