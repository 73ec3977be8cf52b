"""Renders templates in this process."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from server.templates.jinja import FAULTS, TemplateEnvironment, TemplateRaisedError, environment
from server.templates.rendering import RenderFault, RenderRefusal, TemplateBroken

MAX_COMPILED = 64
_MAX_MESSAGE = 500  # characters


class InProcess:
    """Renders in the calling thread, with an LRU cache of compiled templates."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, tuple[TemplateEnvironment, Template]] = OrderedDict()
        self._lock = Lock()

    def check(self, source: str) -> None:
        """Compile the source."""
        try:
            self._template(source)
        except FAULTS as error:
            raise TemplateBroken(_message(error)) from error

    def render(self, source: str, arguments: Mapping[str, Any]) -> str:
        """Render, with copies of lists and dicts if the template changes any."""
        try:
            jinja, template = self._template(source)
            return jinja.render(template, dict(arguments))
        except TemplateRaisedError as error:
            raise RenderRefusal(str(error.message)) from error
        except FAULTS as error:
            raise RenderFault(_message(error)) from error

    def render_opened(self, source: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Render with and without the generation prompt."""
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


def _message(error: BaseException) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {str(error.message)[:_MAX_MESSAGE]}"
    if isinstance(error, TemplateError) and error.message is not None:
        return f"{type(error).__name__}: {error.message[:_MAX_MESSAGE]}"
    return f"{type(error).__name__}: {str(error)[:_MAX_MESSAGE]}"
