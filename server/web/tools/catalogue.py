"""The built-in tools as GET /tools lists them (``tools.json``), and which of them are enabled."""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import orjson

from server.errors import InvalidRequest, NotFound, short, short_json

SHELL, EVERY = "exec_shell_command", "all"
Json = dict[str, Any]


@cache
def all_tools() -> dict[str, Json]:
    """Return the definition of each tool by its name: title, description, JSON Schema of its parameters."""
    tools = orjson.loads(resources.files(__package__).joinpath("tools.json").read_bytes())
    return {tool["tool"]: tool for tool in tools}


def shown(name: str, title: str, kind: str, description: str, parameters: Json, *, writes: bool = False) -> Json:
    """Return a tool as llama-server's web UI reads it. ``definition`` has OpenAI's format."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {
        "display_name": title,
        "tool": name,
        "type": kind,
        "permissions": {"write": writes},
        "uses_cwd": kind == "server",
        "definition": {"type": "function", "function": function},
    }


class PageTools:
    """The enabled tools: `names`, or all if ``all`` is one of them."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        known = all_tools() if names else {}
        self._on = {name: tool for name, tool in known.items() if EVERY in names or name in names}

    def __bool__(self) -> bool:
        return bool(self._on)

    @property
    def names(self) -> frozenset[str]:
        """The names of the tools that are on."""
        return frozenset(self._on)

    def shown(self) -> list[Json]:
        """Return all enabled tools."""
        return [
            shown(name, tool["title"], "server", tool["description"], tool["parameters"], writes=tool["writes"])
            for name, tool in self._on.items()
        ]

    def check(self, name: str, params: Json, *, stream: bool) -> None:
        """Raise `NotFound` unless the tool is on, and `InvalidRequest` unless `params` match its schema."""
        tool = self._on.get(name)
        if tool is None:
            raise NotFound(f'unknown tool "{short(name)}"')
        if stream and name != SHELL:
            raise NotFound(f'tool "{name}" does not support stream = true')
        from jsonschema import Draft202012Validator, validators  # takes a while to import

        types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # not 2.0
        strict = validators.extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
        for error in strict(tool["parameters"]).iter_errors(params):
            at = ".".join(map(str, ("params", *error.absolute_path)))
            message = error.message.replace(repr(error.instance), short_json(error.instance), 1)
            raise InvalidRequest(f"{at}: {short(message)}", at)
