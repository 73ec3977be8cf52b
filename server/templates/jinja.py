"""Renders in this process, in the sandboxed Jinja2 environment that Hugging Face templates expect (transformers,
utils/chat_template_utils.py).

A template is an untrusted part of a model, so it has no access to Python. `isolated` limits its time and memory.
"""

import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from server.templates.rendering import FAULTS, RenderFault, RenderRefusal, TemplateBroken

MAX_TEXT_CHARS = 16 << 20  # of one rendering
MAX_COMPILED = 64
_MAX_MESSAGE = 500  # characters

_MODIFICATION = re.compile(r"\.(append|extend|insert|pop|remove|update|setdefault|sort|reverse|clear)\(")


class GenerationTag(Extension):
    """Renders the contents of ``{% generation %}…{% endgeneration %}``, which marks tokens for training."""

    tags = {"generation"}  # noqa: RUF012 - as declared by Jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of a template with that source, with Hugging Face's filters and functions.

    A few templates modify lists (`.append(`), which llama-server allows and Hugging Face does not. They get copies.
    """

    def __init__(self, source: str) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], autoescape=False
        )
        self._mutable = _MODIFICATION.search(source) is not None
        self.filters["tojson"] = _tojson
        self.filters["safe"] = str  # there is no escaping, and `Markup` would escape texts that are joined to it
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render(self, template: Template, arguments: dict[str, Any]) -> str:
        """Return the text. Raises any exception of the template, and `RenderFault` for a too long text."""
        if self._mutable:
            arguments = deepcopy(arguments)
        text: list[str] = []
        n_chars = 0
        for part in template.generate(arguments):
            n_chars += len(part)
            if n_chars > MAX_TEXT_CHARS:
                raise RenderFault(f"the text is longer than {MAX_TEXT_CHARS} characters")
            text.append(part)
        return "".join(text)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether the template may use an attribute. Only a template with copies may modify lists and dicts."""
        if self._mutable:
            return SandboxedEnvironment.is_safe_attribute(self, obj, attr, value)
        return super().is_safe_attribute(obj, attr, value)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return JSON without HTML escapes, unlike Jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=_listed, **options)


def _listed(value: object) -> list[Any]:
    """Return the result of filters like `map` as a list, for JSON."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: str) -> None:
    raise RenderRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern[:1000])


def render(source: str, *arguments: Mapping[str, Any]) -> list[str]:
    """Implement `rendering.Renderer`. A template that modifies lists or dicts gets copies."""
    try:
        jinja, template = _compiled(source)
    except Exception as error:  # the source may make the compiler raise anything
        raise TemplateBroken(_message(error)) from error
    try:
        return [jinja.render(template, dict(each)) for each in arguments]
    except RenderFault:
        raise
    except Exception as error:  # a template may raise anything
        raise RenderFault(_message(error)) from error


@lru_cache(MAX_COMPILED)
def _compiled(source: str) -> tuple[TemplateEnvironment, Template]:
    jinja = TemplateEnvironment(source)
    return jinja, jinja.from_string(source)


def _message(error: BaseException) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {str(error.message)[:_MAX_MESSAGE]}"
    message = error.message if isinstance(error, TemplateError) and error.message is not None else str(error)
    return f"{type(error).__name__}: {message[:_MAX_MESSAGE]}"


# Templates that use all features that import modules on first use: they run before the sandbox denies opening files.
_WARM_UP = (
    "{% for m in messages %}{{ '\\n' ~ m.role | trim }}{{ [m] | tojson }}{{ m | pprint }}{% endfor %}"
    "{{ strftime_now('%d %b %Y') }}{{ 'a b' | wordwrap(1) | urlize | striptags }}{{ lipsum(1) }}",
    "{{ raise_exception('no') }}",
    "{{ messages.nothing.at.all }}",
    "{% if %}",
)


def answerer() -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Create the function that a sandbox process runs (`server.sandbox.worker`).

    The function takes pickled arguments of `render`. It returns a line with the lengths of the texts, then the texts.
    """

    def answer(_: bytes, request: bytes) -> tuple[bytes, bytes]:
        kind = b"t"
        try:
            texts = render(*pickle.loads(request))  # noqa: S301 - sent by the server
            text = "\n".join((" ".join(str(len(each)) for each in texts), "".join(texts)))
        except (RenderFault, TemplateBroken) as error:
            kind, text = next(kind for kind, fault in FAULTS.items() if type(error) is fault), str(error)
        return kind, text.encode("utf-8", "surrogatepass")

    for source in _WARM_UP:
        answer(b"", pickle.dumps((source, {"messages": [{"role": "user"}]})))
    return answer
