"""Who renders templates: this process (`InProcess`), or others that it watches (`isolated`)."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol

from jinja2 import Template, TemplateError, TemplateSyntaxError

from server.templates.jinja import FAULTS, TemplateEnvironment, TemplateRaisedError, environment

MAX_COMPILED = 64
_MAX_COMPLAINT = 500  # characters


class RenderFault(Exception):
    """A template failed on what it was given: ``TypeError: …``."""


class RenderRefusal(RenderFault):
    """The template itself refused it, by ``raise_exception``, in these words."""


class RenderStopped(RenderFault):
    """It took too much time or memory."""


class TemplateBroken(Exception):
    """The source does not compile."""


class Renderer(Protocol):
    """Safe to use from any thread."""

    def check(self, source: str) -> None:
        """Raises `TemplateBroken` when that source does not compile, `RenderStopped` when that takes too much."""

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """The text. Raises `RenderFault`."""

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """The text with ``add_generation_prompt``, and without. Raises `RenderFault`."""


class InProcess:
    """Renders in the calling thread. Compiled templates are kept, the least recently used ones give way."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, tuple[TemplateEnvironment, Template]] = OrderedDict()
        self._lock = Lock()

    def check(self, source: str) -> None:
        """Compile it."""
        try:
            self._template(source)
        except FAULTS as error:
            raise TemplateBroken(_words(error)) from error

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render with copies of lists and dicts where the template changes any."""
        try:
            jinja, template = self._template(source)
            return jinja.render(template, dict(arguments))
        except TemplateRaisedError as error:
            raise RenderRefusal(str(error.message)) from error
        except FAULTS as error:
            raise RenderFault(_words(error)) from error

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """As `render`, twice."""
        opened, closed = ({**arguments, "add_generation_prompt": opens} for opens in (True, False))
        return self.render(source, opened), self.render(source, closed)

    def _template(self, source: str) -> tuple[TemplateEnvironment, Template]:
        with self._lock:
            found = self._compiled.pop(source, None)
            if found is None:
                jinja = environment(source)
                found = jinja, jinja.from_string(source)
            self._compiled[source] = found
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return found


def _words(error: BaseException) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {str(error.message)[:_MAX_COMPLAINT]}"
    if isinstance(error, TemplateError) and error.message is not None:
        return f"{type(error).__name__}: {error.message[:_MAX_COMPLAINT]}"
    return f"{type(error).__name__}: {str(error)[:_MAX_COMPLAINT]}"
