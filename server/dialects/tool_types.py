"""Tool types that OpenAI and Anthropic define, as functions that any model can call: the table of both dialects.

A model sees functions only. A row of `RESPONSES`, `ANTHROPIC` or `TOOLSETS` says which function stands for a type whose
calls the client executes, and, for Responses, which items carry a call and its output. A type without a row is left out
with a warning: `left_out_reason` says whether the provider's servers would execute it. To support a type, add its row.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from server.dialects.common import Json
from server.dialects.fields import json_text
from server.formats.arguments import object_of

Schema = Mapping[str, Any]


def _object(description: str = "", /, **members: Schema) -> Json:
    """Return the schema of an object. A member whose name ends with an underscore is optional."""
    schema: Json = {
        "type": "object",
        "properties": {name.removesuffix("_"): dict(member) for name, member in members.items()},
        "required": [name for name in members if not name.endswith("_")],
        "additionalProperties": False,
    }
    return schema | {"description": description} if description else schema


def _string(description: str) -> Json:
    return {"type": "string", "description": description}


def _integer(description: str) -> Json:
    return {"type": "integer", "description": description}


def _one_of(description: str, *values: str) -> Json:
    return {"type": "string", "enum": list(values), "description": description}


def _list(description: str, items: Schema) -> Json:
    return {"type": "array", "items": dict(items), "description": description}


def _numbers(description: str, n: int) -> Json:
    return _list(description, {"type": "integer"}) | {"minItems": n, "maxItems": n}


@dataclass(frozen=True, slots=True)
class ToolType:
    """A tool type whose calls the client executes.

    ``name``, ``description`` and ``parameters`` are those of the function that the model sees; with ``open`` the client
    may give its own. The other fields are for Responses. ``call`` and ``output`` are the types of the items, ``prefix``
    is the beginning of the call's id, ``payload`` its member that has the arguments; without one they are members of
    the item. ``fixed`` is added to the payload, ``item`` to the item. ``nothing`` are the arguments of a call that must
    not be executed (a limit cut it off, or its arguments don't fit), and ``unfinished`` is the status of such a call.
    """

    name: str
    description: str
    parameters: Schema
    call: str = ""
    output: str = ""
    payload: str = ""
    prefix: str = ""
    open: bool = False
    fixed: Schema = field(default_factory=dict)
    item: Schema = field(default_factory=dict)
    nothing: Schema = field(default_factory=dict)
    unfinished: str = "incomplete"
    to_payload: Callable[[Json], Json] = dict
    from_payload: Callable[[Json], Json] = dict

    def read(self, arguments: str) -> Json | None:
        """Return the arguments that a model wrote. Returns None if they can't be executed as they are."""
        try:
            given = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
        return given if _fits(given, {"type": "object"} if self.open else self.parameters) else None

    def body(self, arguments: Json | None) -> Json:
        """Return the members of a call item that has those arguments, or ones without any effect for None."""
        members = self.to_payload(dict(self.nothing if arguments is None else arguments))
        return {**self.item, **({self.payload: {**self.fixed, **members}} if self.payload else members)}

    def arguments(self, item: Mapping[str, Any]) -> Json | None:
        """Return the arguments of a call item as the model wrote them. Returns None if it has none of this type."""
        given: object = item.get(self.payload)
        if not self.payload:
            given = {name: item[name] for name in self.parameters["properties"] if item.get(name) is not None} or None
        if isinstance(given, str):
            given = object_of(given)
        if not isinstance(given, dict):
            return None if given is None else {"input": given}
        kept = {name: value for name, value in given.items() if value is not None and self.fixed.get(name) != value}
        return self.from_payload(kept)


def _fits(value: object, schema: Schema) -> bool:
    """Return whether `value` matches a schema of this module; a schema without properties accepts any object."""
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    match schema.get("type"):
        case "object":
            members, others = schema.get("properties", {}), schema.get("additionalProperties") or {}
            return (
                isinstance(value, dict)
                and all(name in value for name in schema.get("required", ()))
                and all(_fits(given, members.get(name, others)) for name, given in value.items())
            )
        case "array":
            return isinstance(value, list) and all(_fits(each, schema.get("items", {})) for each in value)
        case "string":
            return isinstance(value, str) and value in schema.get("enum", (value,))
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
    return True


def _without_diff(operation: Json) -> Json:
    if operation["type"] == "delete_file":
        operation.pop("diff", None)
    return operation


def _with_diff(operation: Json) -> Json:
    return {**operation, "diff": ""} if operation.get("type") == "delete_file" else operation


_X, _Y = _integer("Pixels from the left edge."), _integer("Pixels from the top edge.")
_HELD = _list("Keys that are held down meanwhile.", {"type": "string"})


def _action(name: str, /, **members: Schema) -> Json:
    return _object(type={"type": "string", "enum": [name]}, **members)


_ACTION: Json = {
    "anyOf": [
        _action(
            "click", x=_X, y=_Y, button=_one_of("The button.", "left", "right", "wheel", "back", "forward"), keys_=_HELD
        ),
        _action("double_click", x=_X, y=_Y, keys_=_HELD),
        _action("drag", path=_list("Points on the way.", _object(x=_X, y=_Y)), keys_=_HELD),
        _action("keypress", keys=_list("Keys that are pressed together.", {"type": "string"})),
        _action("move", x=_X, y=_Y, keys_=_HELD),
        _action("screenshot"),
        _action("scroll", x=_X, y=_Y, scroll_x=_integer("Pixels."), scroll_y=_integer("Pixels."), keys_=_HELD),
        _action("type", text=_string("The text.")),
        _action("wait"),
    ]
}
_TIMEOUT = _integer("Milliseconds after which the command is stopped.")
_COMPUTER = "Controls a computer by its mouse and keyboard. The result is a screenshot."
_COMPUTER_ITEM: Schema = {"pending_safety_checks": []}

RESPONSES: Mapping[str, ToolType] = {
    "local_shell": ToolType(
        "local_shell",
        "Runs a command on the user's machine and returns what it writes.",
        _object(
            command=_list("The program and its arguments.", {"type": "string"}),
            env_={"type": "object", "additionalProperties": {"type": "string"}, "description": "More variables."},
            timeout_ms_=_TIMEOUT,
            user_=_string("The user that runs it."),
            working_directory_=_string("The directory that it runs in."),
        ),
        *("local_shell_call", "local_shell_call_output", "action", "lsh_"),
        fixed={"type": "exec", "env": {}},
        nothing={"command": []},
    ),
    "shell": ToolType(
        "shell",
        "Runs shell commands on the user's machine and returns what each of them writes.",
        _object(
            commands=_list("Shell commands. They may run at the same time.", {"type": "string"}),
            timeout_ms_=_TIMEOUT,
            max_output_length_=_integer("The most characters that are returned of a command's output."),
        ),
        *("shell_call", "shell_call_output", "action", "sh_"),
        item={"environment": {"type": "local"}},
        nothing={"commands": []},
    ),
    "apply_patch": ToolType(
        "apply_patch",
        "Creates, updates or deletes one file.\n"
        "The diff of create_file is the file's lines, each with + in front. The diff of update_file is one or more "
        "hunks: a line @@, optionally with a line of the file that comes before (such as @@ def f():), then the hunk's "
        "lines with a space in front of those that stay, - of those that go, + of those that are new. Show three lines "
        "around a change. There are no line numbers.",
        _object(
            type=_one_of("What to do.", "create_file", "update_file", "delete_file"),
            path=_string("The file, relative to the workspace."),
            diff=_string("The change; empty for delete_file."),
        ),
        *("apply_patch_call", "apply_patch_call_output", "operation", "apc_"),
        nothing={"type": "update_file", "path": "", "diff": ""},
        unfinished="in_progress",  # the API knows no other status of a call that is not completed
        to_payload=_without_diff,
        from_payload=_with_diff,
    ),
    "tool_search": ToolType(
        "tool_search",
        "Searches for more tools. Those that are found can be called from then on.",
        _object(query=_string("What the tool should do."), limit_=_integer("The most tools that are returned.")),
        *("tool_search_call", "tool_search_output", "arguments", "tsc_"),
        open=True,
        item={"execution": "client"},
    ),
    "computer": ToolType(
        "computer",
        _COMPUTER,
        _object(actions=_list("Actions, one after the other.", _ACTION)),
        *("computer_call", "computer_call_output", "", "cu_"),
        item=_COMPUTER_ITEM,
        nothing={"actions": []},
    ),
    "computer_use_preview": ToolType(
        "computer",
        _COMPUTER,
        _object(action=_ACTION),
        *("computer_call", "computer_call_output", "", "cu_"),
        item=_COMPUTER_ITEM,
        nothing={"action": {"type": "screenshot"}},
    ),
}
"""Of Responses, by the ``type`` of the tool."""


def written(arguments: Json) -> str:
    """Return arguments as models write them: with a space after each comma and colon."""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return json_text(arguments)


def called(kind: str, item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the function and the arguments of a Responses call item of type `kind`, None for any other item."""
    for row in RESPONSES.values():
        if row.call == kind and (arguments := row.arguments(item)) is not None:
            return row.name, written(arguments)
    return None


_PATH = _string("The absolute path of a file or directory.")
_LINE = _integer("The line after which the text is inserted; 0 for the beginning.")
_EDITS: Mapping[str, Schema] = {
    "view_range_": _numbers("For view: the first and the last line, -1 for the end.", 2),
    "file_text_": _string("For create: what the file contains."),
    "old_str_": _string("For str_replace: the text to replace, which must occur once."),
    "new_str_": _string("For str_replace: the text that replaces it."),
    "insert_line_": _LINE,
    "insert_text_": _string("For insert: the text."),
}
_OLD_EDITS = {name: member for name, member in _EDITS.items() if name != "insert_text_"}
_OLD_EDITS["new_str_"] = _string("For str_replace: the text that replaces it. For insert: the text.")
_COMMAND = "What to do."
_POINT = _numbers("x and y in pixels from the top left corner.", 2)
_CHORD = _string("Keys that are held down meanwhile, such as ctrl+shift.")
_DIRECTION = _one_of("Where to.", "up", "down", "left", "right")
_SECONDS = _integer("Seconds.")
_REGION = _numbers("Left, top, right and bottom edge in pixels.", 4)


def _editor(*commands: str, members: Mapping[str, Schema] = _EDITS) -> ToolType:
    return ToolType(
        "str_replace_based_edit_tool",
        "Views, creates and edits text files. str_replace changes one place, insert adds lines.",
        _object(command=_one_of(_COMMAND, *commands), path=_PATH, **members),
    )


def _computer_use(*actions: str, **members: Schema) -> ToolType:
    known = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click")
    members = {"coordinate_": _POINT, "text_": _string("For type: the text. For key: keys such as ctrl+s."), **members}
    every = (*known, "double_click", "screenshot", "cursor_position", *actions)
    return ToolType("computer", _COMPUTER, _object(action=_one_of(_COMMAND, *every), **members))


_LATER_ACTIONS = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")
_LATER_MEMBERS: Mapping[str, Schema] = {
    "start_coordinate_": _POINT,
    "scroll_direction_": _DIRECTION,
    "scroll_amount_": _integer("Steps of the wheel."),
    "duration_": _SECONDS,
}
_BASH = ToolType(
    "bash",
    "Runs a command in a bash session that stays open between calls, and returns what it writes.",
    _object(command_=_string("The command."), restart_={"type": "boolean", "description": "Start a new session."}),
)
_EDITOR = _editor("view", "create", "str_replace", "insert")
_MEMORY = ToolType(
    "memory",
    "Keeps notes in files below /memories that stay when the conversation has ended. Look there before you begin.",
    _object(
        command=_one_of(_COMMAND, "view", "create", "str_replace", "insert", "delete", "rename"),
        path_=_string("The path of a file or directory, for every command but rename."),
        **_EDITS,
        old_path_=_string("For rename: the path."),
        new_path_=_string("For rename: the new path."),
    ),
)
_COMPUTER_USE = _computer_use(*_LATER_ACTIONS, **_LATER_MEMBERS)
_ZOOMING = _computer_use(*_LATER_ACTIONS, "zoom", **_LATER_MEMBERS, region_=_REGION)
_UNDOABLE = _editor("view", "create", "str_replace", "insert", "undo_edit", members=_OLD_EDITS)
ANTHROPIC: Mapping[str, ToolType] = {
    "bash": _BASH,
    "text_editor": _EDITOR,
    "text_editor_20241022": _UNDOABLE,
    "text_editor_20250124": _UNDOABLE,
    "text_editor_20250429": _editor("view", "create", "str_replace", "insert", members=_OLD_EDITS),
    "memory": _MEMORY,
    "computer": _COMPUTER_USE,
    "computer_20241022": _computer_use(),
}
"""Of Anthropic, by the tool's ``type``; without a date for all versions that have no row of their own."""

_AT = _object(type={"type": "string", "enum": ["coordinate"]}, x=_X, y=_Y)
_REF = _object(type={"type": "string", "enum": ["ref"]}, ref=_string("An element that read_page or find returned."))
_MEMBERS: Mapping[str, Schema] = {
    "coordinate": _POINT,
    "start_coordinate": _POINT,
    "region": _REGION,
    "scroll_direction": _DIRECTION,
    "scroll_amount": _integer("Steps of the wheel."),
    "duration": _SECONDS,
    "repeat": _integer("How often; 1 by default."),
    "text": _string("The text."),
    "text:keys": _string("Keys such as ctrl+s."),
    "text:held": _CHORD,
    "text:code": _string("The code, without return."),
    "modifiers": _CHORD,
    "tab_id": _string("The tab; the active one by default."),
    "tab_id:one": _string("The tab."),
    "url": _string("An address, or back, forward or reload."),
    "target": {"anyOf": [_AT, _REF], "description": "A point of the page or an element."},
    "target:point": _AT,
    "target:element": _REF,
    "from": _AT,
    "depth": _integer("The deepest level; 15 by default."),
    "filter": _one_of("Which elements; those in view by default.", "all", "interactive"),
    "ref": _string("The element to begin with; the whole page by default."),
    "query": _string("What to look for."),
    "value": {
        "anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}],
        "description": "The value; true or false for a checkbox.",
    },
    "paths": _list("Paths of files.", {"type": "string"}),
    "document_ids": _list("Ids of files that are prepared.", {"type": "string"}),
    "scroll_amount:few": _integer("Steps, 1 to 10; 3 by default."),
}
"""Members of the functions of toolsets. A name after the colon tells apart what one member means in them."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """A family of functions that one entry of ``tools`` represents. ``off``: those that are disabled by default."""

    name: str
    members: Mapping[str, tuple[str, Schema]]
    off: frozenset[str] = frozenset()


def _toolset(name: str, functions: Mapping[str, tuple[str, str]], *off: str) -> Toolset:
    """Return a toolset of functions: the description and the `_MEMBERS` of each, ``?`` after optional ones."""
    members = {}
    for function, (description, given) in functions.items():
        found = {}
        for member in given.split():
            key = member.rstrip("?")
            found[key.partition(":")[0] + "_" * member.endswith("?")] = _MEMBERS[key]
        members[function] = (description, _object(**found))
    return Toolset(name, members, frozenset(off))


TOOLSETS: Mapping[str, Toolset] = {
    "computer_toolset_20260801": _toolset(
        "computer",
        {
            "key": ("Presses keys.", "text:keys repeat?"),
            "hold_key": ("Holds keys down.", "text:keys duration"),
            "type": ("Types a text.", "text"),
            "cursor_position": ("Returns where the cursor is.", ""),
            "mouse_move": ("Moves the cursor without a click.", "coordinate"),
            "left_mouse_down": ("Presses the left button and holds it.", ""),
            "left_mouse_up": ("Releases the left button.", ""),
            "left_click": ("Clicks at a point or where the cursor is.", "coordinate? text:held?"),
            "left_click_drag": ("Drags from one point to another.", "start_coordinate coordinate text:held?"),
            "right_click": ("Clicks with the right button.", "coordinate? text:held?"),
            "middle_click": ("Clicks with the middle button.", "coordinate? text:held?"),
            "double_click": ("Clicks twice.", "coordinate? text:held?"),
            "triple_click": ("Clicks three times.", "coordinate? text:held?"),
            "scroll": (
                "Turns the wheel at a point or where the cursor is.",
                "scroll_direction scroll_amount coordinate? text:held?",
            ),
            "wait": ("Waits.", "duration"),
            "screenshot": ("Returns a screenshot.", ""),
            "zoom": ("Returns an enlarged part of the screen.", "region"),
        },
    ),
    "browser_toolset_20260801": _toolset(
        "browser",
        {
            "navigate": ("Opens an address, or goes back, forward or reloads.", "url tab_id?"),
            "list_tabs": ("Lists the open tabs.", ""),
            "new_tab": ("Opens an empty tab and returns its id.", ""),
            "switch_tab": ("Makes a tab the active one.", "tab_id:one"),
            "close_tab": ("Closes a tab.", "tab_id:one"),
            "read_page": (
                "Returns the page's accessibility tree with references such as ref_7.",
                "depth? filter? ref? tab_id?",
            ),
            "get_page_text": ("Returns the page's text.", "tab_id?"),
            "read_console": ("Returns what the console has written since the last call.", "tab_id?"),
            "read_network": ("Returns the requests since the last call.", "tab_id?"),
            "find": ("Finds elements by a description.", "query tab_id?"),
            "form_input": ("Sets the value of a form's element.", "target:element value tab_id?"),
            "file_upload": ("Puts files into a file element.", "target:element paths? document_ids? tab_id?"),
            "scroll_to": ("Scrolls until an element is in view.", "target:element tab_id?"),
            "screenshot": ("Returns a screenshot of the page.", "tab_id?"),
            "zoom": ("Returns an enlarged part of the page.", "region tab_id?"),
            "left_click": ("Clicks.", "target modifiers? tab_id?"),
            "right_click": ("Clicks with the right button.", "target modifiers? tab_id?"),
            "middle_click": ("Clicks with the middle button.", "target modifiers? tab_id?"),
            "double_click": ("Clicks twice.", "target modifiers? tab_id?"),
            "triple_click": ("Clicks three times.", "target modifiers? tab_id?"),
            "hover": ("Moves the cursor over a place without a click.", "target tab_id?"),
            "left_click_drag": ("Drags from one point to another.", "from target:point tab_id?"),
            "left_mouse_down": ("Presses the left button and holds it.", "target:point tab_id?"),
            "left_mouse_up": ("Releases the left button.", "target:point tab_id?"),
            "mouse_move": ("Moves the cursor without a click.", "target:point tab_id?"),
            "scroll": ("Turns the wheel.", "scroll_direction target:point scroll_amount:few? tab_id?"),
            "type": ("Types a text.", "text tab_id?"),
            "key": ("Presses keys.", "text:keys repeat? tab_id?"),
            "hold_key": ("Holds keys down.", "text:keys duration tab_id?"),
            "wait": ("Waits.", "duration tab_id?"),
            "javascript_exec": (
                "Runs JavaScript in the page and returns the value of its last expression.",
                "text:code tab_id?",
            ),
        },
        *("file_upload", "javascript_exec"),
    ),
}
"""Of Anthropic, by the ``type`` of the entry. A model calls a member ``computer__left_click``."""

_DATED = re.compile(r"(bash|text_editor|memory|computer)_\d{8}")
SERVERS = (
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation", "advisor"),
    *("programmatic_tool_calling", "tool_search", "shell"),  # a search without execution by the client, a container
)
"""Types that only the provider's servers execute; names with a suffix, such as a date, are versions."""
_SERVERS = re.compile(rf"(?:{'|'.join(SERVERS)})(_\w+)?")


def anthropic_type(entry: Mapping[str, Any]) -> ToolType | None:
    """Return the row of an Anthropic tool whose calls the client executes, None for any other tool."""
    kind = entry.get("type")
    found = _DATED.fullmatch(kind) if isinstance(kind, str) else None
    if found is None:
        return None
    if found[1] == "computer" and entry.get("enable_zoom") is True:
        return _ZOOMING
    return ANTHROPIC.get(found[0]) or ANTHROPIC[found[1]]


def left_out_reason(kind: str) -> str:
    """Return why tools of a type without a row are left out."""
    return "only the provider's servers execute them" if _SERVERS.fullmatch(kind) else "no model can use them here"
