"""``grammar_lazy``, ``grammar_triggers`` and ``preserved_tokens``: a grammar that holds from a trigger on.

Fields and errors are llama-server's (tools/server/server-schema.cpp, server_grammar_trigger): tokens (0), words (1),
patterns that are looked for (2) and patterns of the whole text so far (3).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from server.constrain.lazy import PATTERN_FULL, TOKEN, WORD, Lazy
from server.wire.fields import Body, json_type

MAX_TRIGGERS = 64
MAX_PRESERVED = 1024
MAX_CHARS = 256


class LazyFields(Body):
    """Whether a grammar waits, what for, and the control tokens whose text is shown."""

    grammar_lazy: bool | None = None
    grammar_triggers: Any = None
    preserved_tokens: Any = None

    @property
    def lazy(self) -> Lazy | None:
        """What a grammar waits for; None for one that holds from the first token on."""
        return Lazy(self.grammar_triggers or (), self.preserved_tokens or ()) if self.grammar_lazy else None

    @field_validator("grammar_triggers")
    @classmethod
    def _known_triggers(cls, value: object) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list):
            raise ValueError(f"type must be array, but is {json_type(value)}")
        if len(value) > MAX_TRIGGERS:
            raise ValueError(f"must have at most {MAX_TRIGGERS} entries")
        return tuple(_trigger(trigger, number) for number, trigger in enumerate(value))

    @field_validator("preserved_tokens")
    @classmethod
    def _texts(cls, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError("must be a list of strings")
        if len(value) > MAX_PRESERVED or any(len(text) > MAX_CHARS for text in value):
            raise ValueError(f"must have at most {MAX_PRESERVED} entries of at most {MAX_CHARS} characters")
        return tuple(value)


def _trigger(given: object, number: int) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"entry {number} must be an object, but is {json_type(given)}")
    kind, value, token = given.get("type"), given.get("value"), given.get("token")
    if not isinstance(value, str) or len(value) > MAX_CHARS:
        raise ValueError(f"entry {number}: 'value' must be a string of at most {MAX_CHARS} characters")
    if kind == TOKEN and not isinstance(kind, bool):
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(f"entry {number}: 'token' must be a number")
        return {"type": TOKEN, "value": value, "token": token}
    if isinstance(kind, int) and not isinstance(kind, bool) and WORD <= kind <= PATTERN_FULL:
        if not value:
            raise ValueError(f"entry {number}: 'value' must not be empty")
        return {"type": kind, "value": value}
    raise ValueError(
        f"entry {number}: 'type' must be 0 (token), 1 (word), 2 (pattern) or 3 (pattern of the whole text)"
    )
