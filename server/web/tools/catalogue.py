"""The built-in tools as GET /tools lists them, and which of them are enabled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest, NotFound, short

SHELL = "exec_shell_command"
MOST_SHELL_S = 60
MOST_OUTPUT_BYTES = 16 * 1024
MOST_FOUND = 100
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PageTool:
    """One tool. ``parameters``: JSON type and description by name; the first ``n_needed`` are required."""

    name: str
    title: str
    about: str
    parameters: dict[str, Json]
    n_needed: int = 0
    writes: bool = False

    def shown(self) -> Json:
        """Return the tool as llama-server's web UI reads it. ``definition`` has OpenAI's format."""
        schema: Json = {"type": "object", "properties": self.parameters}
        if self.n_needed:
            schema["required"] = list(self.parameters)[: self.n_needed]
        function = {"name": self.name, "description": self.about, "parameters": schema}
        return {
            "display_name": self.title,
            "tool": self.name,
            "type": "server",
            "permissions": {"write": self.writes},
            "uses_cwd": True,
            "definition": {"type": "function", "function": function},
        }


def _text(about: str) -> Json:
    return {"type": "string", "description": about}


def _number(about: str) -> Json:
    return {"type": "integer", "description": about}


def _flag(about: str) -> Json:
    return {"type": "boolean", "description": about}


_WHERE = (
    "Inside a git repository files that it ignores are left out, elsewhere folders such as node_modules or build. "
    'A pattern without "/" is for the name of a file at any depth, others are for its path.'
)
_EDIT = {
    "type": "object",
    "properties": {
        "old_text": _text("Exact current text; it must occur once and must not overlap other edits"),
        "new_text": _text("Replacement text"),
    },
    "required": ["old_text", "new_text"],
}

ALL = (
    PageTool(
        "read_file",
        "Read file",
        "Read a text file, or some of its lines; they are counted from 1.",
        {
            "path": _text("The file"),
            "start_line": _number("First line (default: 1)"),
            "end_line": _number("Last line (default: the end)"),
            "append_loc": _flag("Begin each line with its number"),
        },
        1,
    ),
    PageTool(
        "file_glob_search",
        "File search",
        f'Find files below a folder by a pattern such as "*.py" or "src/**/*.py". {_WHERE}',
        {
            "path": _text("The folder"),
            "include": _text("Pattern of the files wanted (default: **)"),
            "exclude": _text("Pattern of files not wanted"),
            "type": _text('"file" (default), "dir" or "all"; folders end with "/"'),
            "max_depth": _number("1 = only what is in the folder itself (default: 0 = any depth)"),
            "limit": _number(f"Most results, {MOST_FOUND} at most"),
        },
        1,
    ),
    PageTool(
        "grep_search",
        "Grep search",
        f"Find lines of a file, or of the files below a folder, by a regular expression. {_WHERE}",
        {
            "path": _text("The file or folder"),
            "pattern": _text("The regular expression, or the text if literal is true"),
            "include": _text("Pattern of the files to look into (default: **)"),
            "exclude": _text("Pattern of files not to look into"),
            "return_line_numbers": _flag("Tell the numbers of lines"),
            "literal": _flag("The pattern is text"),
            "ignore_case": _flag("Take small and capital letters as the same"),
            "context_lines": _number("Number of lines to show before and after each match (default: 0)"),
        },
        2,
    ),
    PageTool(
        SHELL,
        "Execute shell command",
        "Run a shell command; returns its output, its error output and its exit code.",
        {
            "command": _text("The command"),
            "timeout": _number(f"Seconds until it is ended (default: 10, at most {MOST_SHELL_S})"),
            "max_output_size": _number(f"Most bytes of output (default and most: {MOST_OUTPUT_BYTES})"),
        },
        1,
        writes=True,
    ),
    PageTool(
        "write_file",
        "Write file",
        "Write a file in place of what is there; folders that are missing are made.",
        {"path": _text("The file"), "content": _text("What is to be in it")},
        2,
        writes=True,
    ),
    PageTool(
        "edit_file",
        "Edit file",
        "Replace parts of a text file. All edits are of the file as it is now, so they must not overlap.",
        {
            "path": _text("The file"),
            "edits": {"type": "array", "description": "One replacement or more", "items": _EDIT},
        },
        2,
        writes=True,
    ),
    PageTool("get_info", "Get Runtime Info", "The operating system and the current folder.", {}),
)
EVERY = "all"


class PageTools:
    """The enabled tools: `names`, or all if ``all`` is one of them."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._on = {tool.name: tool for tool in ALL if EVERY in names or tool.name in names}

    def __bool__(self) -> bool:
        return bool(self._on)

    @property
    def names(self) -> frozenset[str]:
        """The names of the tools that are on."""
        return frozenset(self._on)

    def shown(self) -> list[Json]:
        """Return all enabled tools."""
        return [tool.shown() for tool in self._on.values()]

    def asked(self, name: str, params: Json, *, stream: bool) -> PageTool:
        """Return the tool with this name after checking `params`. Raises `NotFound`, `InvalidRequest`."""
        tool = self._on.get(name)
        if tool is None:
            raise NotFound(f'unknown tool "{short(name)}"')
        if stream and name != SHELL:
            raise NotFound(f'tool "{name}" does not support stream = true')
        for i, (field, schema) in enumerate(tool.parameters.items()):
            if field not in params:
                if i < tool.n_needed:
                    raise InvalidRequest(f"params.{field}: is missing", f"params.{field}")
            elif not _fits(params[field], schema):
                raise InvalidRequest(f"params.{field}: must be of type {schema['type']}", f"params.{field}")
        return tool


_PYTHON = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def _fits(value: object, schema: Json) -> bool:
    kind = schema["type"]
    if not isinstance(value, _PYTHON[kind]) or (kind == "integer" and isinstance(value, bool)):
        return False
    if isinstance(value, list):
        return all(_fits(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        return all(name in value and _fits(value[name], of) for name, of in schema["properties"].items())
    return True
