"""Checks a finished value against the keywords of its schema that no grammar expresses.

`schema.rewriting` omits these keywords from the grammar: `not`, `uniqueItems`, `oneOf` with branches that overlap. So
the grammar accepts too much. A reply whose model completes an invalid value ends with an error.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from threading import Lock
from typing import Any

import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.schema.formats import FORMATS
from server.vocab import Vocab

MAX_CHECK_STEPS = 50_000
"""Keywords that one check may evaluate; large ones count several times. That takes a few tenths of a second."""
_CHARS_PER_STEP = 100  # of a string that is searched


class _TooManySteps(Exception):
    """The check would take too long."""


class ValueCheck:
    """Validates JSON texts against one normalized schema, in bounded time. Thread-safe."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._lock = Lock()
        self._n_left = 0
        keywords = {**Draft202012Validator.VALIDATORS, **_LINEAR}
        counted = {name: self._counted(check) for name, check in keywords.items()}
        self._validator = validators.extend(Draft202012Validator, counted)(schema)  # type: ignore[no-untyped-call]

    def error(self, text: bytes | bytearray) -> str:
        """Return where and by which keyword a JSON text is invalid; "" if it is valid."""
        with self._lock:
            self._n_left = MAX_CHECK_STEPS
            try:
                error = next(self._validator.iter_errors(json.loads(text)), None)
            except (ValueError, RecursionError):
                return "a number is too long, or its values nest too deeply"
            except _TooManySteps:
                return "checking it takes too long: use a smaller schema"
        return "" if error is None else f"{error.json_path[:100]} does not match the keyword '{error.validator}'"

    def _counted(self, check: Callable[..., Any]) -> Callable[..., Any]:
        """Return a keyword's check that ends when the steps are used up."""

        def counted(validator: Any, given: Any, instance: Any, schema: Any) -> Any:
            self._n_left -= 1 + (len(given) if isinstance(given, list | dict) else 0)
            self._n_left -= len(instance) // _CHARS_PER_STEP if isinstance(instance, str) else 0
            if self._n_left < 0:
                raise _TooManySteps
            return check(validator, given, instance, schema)

        return counted


@lru_cache(maxsize=1024)
def searched(pattern: str) -> Any:
    """Compile a pattern for a search in linear time. Raises ValueError for syntax that RE2 does not have."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(re.sub(r"\\u([0-9a-fA-F]{4})", r"\\x{\1}", pattern), options)
    except re2.error as error:
        raise ValueError(pattern) from error


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and searched(pattern).search(instance) is None:
        yield ValidationError("")


def _format(_: Any, name: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if name == "regex" and isinstance(instance, str):
        try:
            re.compile(instance)
        except (re.error, OverflowError, RecursionError):
            yield ValidationError("")
    for pattern in FORMATS.get(name, ()):
        yield from _pattern(_, pattern, instance, __)


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    for name, value in instance.items() if isinstance(instance, dict) else ():
        for pattern, schema in patterns.items():
            if searched(pattern).search(name) is not None:
                yield from validator.descend(value, schema, path=name)


def _additional_properties(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    patterns = schema.get("patternProperties", ())
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name not in schema.get("properties", ()) and not any(searched(each).search(name) for each in patterns):
            yield from validator.descend(value, more, path=name)


def _unique_items(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list) and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("")


def _hashable(value: Any) -> Hashable:
    """Return equal objects for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(each)) for key, each in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean" if isinstance(value, bool) else "scalar"), value


_LINEAR = {
    "additionalProperties": _additional_properties,
    "format": _format,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
}
"""Keywords whose check by jsonschema may take exponential or quadratic time."""


class CheckedConstraint(MatcherConstraint):
    """A matcher's constraint whose finished value must pass a `ValueCheck`."""

    __slots__ = ("_allowed", "_check", "_refusal", "_text", "_vocab")

    def __init__(self, base: MatcherConstraint, check: ValueCheck, vocab: Vocab) -> None:
        super().__init__(base.matcher, base._n_tokens, base._ends, base._param, base.recipe)
        self._since_mask_s, self._slow_s = base._since_mask_s, base._slow_s
        self._check, self._vocab = check, vocab
        self._text = bytearray()
        self._allowed = -1  # the token that was checked last
        self._refusal = ""  # why the value that it completes is invalid

    def fork(self) -> "CheckedConstraint":
        """Return an independent copy in the same state."""
        copy = CheckedConstraint(super().fork(), self._check, self._vocab)
        copy._text[:] = self._text
        return copy

    def allows(self, token: int) -> bool:
        """Return whether `token` may be next; False for one that completes an invalid value."""
        if not super().allows(token):
            return False
        if self._completes(token):
            self._refusal = self._check.error(self._text + self._piece(token))
        self._allowed = -1 if self._refusal else token
        return not self._refusal

    def mask(self) -> bytes:
        """Return a bit per token. Raises `InvalidRequest` if the last token that `allows` saw completes an invalid
        value.
        """
        if self._refusal:
            raise InvalidRequest(f"the output does not match the schema: {self._refusal}", self._param)
        return super().mask()

    def masked_by(self) -> MatcherConstraint | None:
        """Return nothing if the matcher's mask is not the answer."""
        return None if self._refusal else self

    def accept(self, token: int) -> None:
        """Advance. Raises `InvalidRequest` for a token that completes an invalid value."""
        if token != self._allowed and not self.allows(token) and self._refusal:
            self.mask()
        super().accept(token)
        self._text += self._piece(token)
        self._allowed = -1

    @property
    def complete(self) -> bool:
        """True when the output may end here."""
        return super().complete and (self.finished or not self._check.error(self._text))

    def _completes(self, token: int) -> bool:
        """Return whether nothing may follow `token`."""
        if token in self._ends:
            return not self.finished
        if self._text.startswith((b"{", b"[")) and not self._piece(token).rstrip().endswith((b"}", b"]")):
            return False
        after = self._matcher.deep_copy()
        return bool(after.consume_token(token) and after.is_stopped())

    def _piece(self, token: int) -> bytes:
        return self._vocab.piece(token, special=False) if 0 <= token < self._vocab.n_tokens else b""
