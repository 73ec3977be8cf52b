"""The Jinja2 environment that Hugging Face templates expect (transformers, utils/chat_template_utils.py), sandboxed.

A template is part of a model, so it is trusted less than code. Besides the sandbox's rules, the cost of one rendering
is limited: loop iterations are counted, and operations that multiply or join text are checked. These limits stop the
usual cases early; `isolated`, which renders in other processes, protects the server from all others.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

MAX_ITERATIONS = 300_000  # of all loops of one rendering, and calls: about a second
MAX_TEXT_CHARS = 16 << 20  # of one rendering, and of every string in it
MAX_PADDING = 10_000  # characters that center, ljust, indent, format ... may add
MAX_NUMBER = 1 << 64

FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    MemoryError,
)
"""Exceptions that a template may raise."""

_WIDE = re.compile(r"\d{5,}")
_CHANGES = re.compile(r"\.(append|extend|insert|pop|remove|update|setdefault|sort|reverse|clear)\(")
_PADDING = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))


class TemplateRaisedError(TemplateError):
    """A template called ``raise_exception`` to reject these messages."""


class TemplateTooCostlyError(TemplateError):
    """A rendering exceeded a limit of this module."""


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's tokens for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the tag's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Hugging Face's filters and functions, with the limits. One rendering per thread at a time."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, *, mutable: bool = False) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag], autoescape=False
        )
        self._meter = threading.local()
        self._mutable = mutable
        self.filters["tojson"] = _tojson
        self.filters["__metered"] = self._metered
        self.filters["__joined"] = _joined
        self.filters["safe"] = str  # nothing is escaped here, and `Markup` would escape what is joined to it
        for name in ("center", "indent"):
            self.filters[name] = _padded(self.filters[name])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render(self, template: Template, arguments: dict[str, Any]) -> str:
        """Render; raises one of FAULTS."""
        self._meter.left = MAX_ITERATIONS
        if self._mutable:
            arguments = deepcopy(arguments)
        text: list[str] = []
        n_chars = 0
        for part in template.generate(arguments):
            n_chars += len(part)
            if n_chars > MAX_TEXT_CHARS:
                raise TemplateTooCostlyError(f"the text is longer than {MAX_TEXT_CHARS} characters")
            text.append(part)
        return "".join(text)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether the template may use it; lists and dicts can be changed only in a `mutable` environment."""
        if self._mutable:
            return SandboxedEnvironment.is_safe_attribute(self, obj, attr, value)
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "__metered", [], [], None, None, lineno=loop.lineno)
        for parent in tree.find_all(nodes.Node):
            for field, value in parent.iter_fields():
                if isinstance(value, nodes.Concat):
                    setattr(parent, field, _joining(value))
                elif isinstance(value, list):
                    value[:] = [_joining(item) if isinstance(item, nodes.Concat) else item for item in value]
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Run an operation of the template. Raises `TemplateTooCostlyError` if its result would be huge."""
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and (abs(left) > MAX_NUMBER or abs(right) > 64):
            raise TemplateTooCostlyError("a power that large")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TemplateTooCostlyError("a format that wide")
        return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the template. Raises `TemplateTooCostlyError` for string methods that pad too much."""
        self._count()
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if isinstance(owner, str):
            if name in _PADDING and any(isinstance(arg, int) and arg > MAX_PADDING for arg in args):
                raise TemplateTooCostlyError(f"{name} to more than {MAX_PADDING} characters")
            if name in ("format", "format_map") and _WIDE.search(owner):
                raise TemplateTooCostlyError("a format that wide")
        return _bounded(super().call(context, function, *args, **kwargs))

    def _metered(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._count()
            yield item

    def _count(self) -> None:
        self._meter.left -= 1
        if self._meter.left < 0:
            raise TemplateTooCostlyError(f"more than {MAX_ITERATIONS} loop iterations and calls")


def environment(source: str) -> TemplateEnvironment:
    """Create an environment for that template.

    A few templates change lists (`.append(`), which llama-server allows and Hugging Face does not. They get copies.
    """
    return TemplateEnvironment(mutable=_CHANGES.search(source) is not None)


def _joining(concat: nodes.Concat) -> nodes.Filter:
    parts = nodes.List(concat.nodes, lineno=concat.lineno)
    return nodes.Filter(parts, "__joined", [], [], None, None, lineno=concat.lineno)


def _joined(parts: list[Any]) -> str:
    """Concatenate, as ``~`` does."""
    return str(_bounded("".join(map(str, parts))))


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_TEXT_CHARS:
        raise TemplateTooCostlyError(f"a value of more than {MAX_TEXT_CHARS} characters")
    return value


def _check_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if (
            isinstance(sequence, str | list | tuple)
            and isinstance(times, int)
            and len(sequence) * times > MAX_TEXT_CHARS
        ):
            raise TemplateTooCostlyError(f"a value of more than {MAX_TEXT_CHARS} characters")
    if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) > MAX_NUMBER:
        raise TemplateTooCostlyError("a product that large")


def _padded(original: Callable[..., str]) -> Callable[..., str]:
    def limited(text: str, width: Any = 4, *args: Any, **kwargs: Any) -> str:
        if isinstance(width, int) and width > MAX_PADDING:
            raise TemplateTooCostlyError(f"padding of more than {MAX_PADDING} characters")
        return original(text, width, *args, **kwargs)

    return limited


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON, unlike Jinja2's own filter without HTML escapes."""
    if isinstance(indent, int) and indent > MAX_PADDING:
        raise TemplateTooCostlyError(f"an indent of more than {MAX_PADDING} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[Any]:
    """Return the result of filters like `map` as a list, for JSON."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: str) -> None:
    raise TemplateRaisedError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern[:1000])
