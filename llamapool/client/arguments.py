"""A method's arguments as a request's body."""

from collections.abc import Mapping
from typing import Any


def body_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``locals()`` of a method whose parameters are the body's fields.

    ``self`` is left out, ``kwargs`` are further fields, and None means that the server's default applies.
    """
    fields = {name: value for name, value in arguments.items() if name not in ("self", "kwargs")}
    return {name: value for name, value in (fields | arguments.get("kwargs", {})).items() if value is not None}
