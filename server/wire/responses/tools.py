"""``tools`` and ``tool_choice`` of OpenAI's Responses, and how the client knows what the model calls.

The model sees functions only. Those of a ``namespace`` are called ``namespace__name``, and come back with their own
name beside ``namespace`` (Codex 0.169 answers a name alone with "unsupported call"); ``functions`` is OpenAI's word for
no namespace, so it is left out of the name. A ``custom`` tool is a function of one text, ``input``. Tools that OpenAI
runs itself are skipped with a warning, and are an error only where ``tool_choice`` names one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.conversation.form import NO_PARAMETERS, Tool, Tools
from server.errors import InvalidRequest
from server.wire.common import Json
from server.wire.custom_tools import custom_tool
from server.wire.fields import wrong_type
from server.wire.tools import MAX_TOOLS, is_strict, name_and_description
from server.wire.warnings import NO_TOOL_LEFT, left_out

NO_NAMESPACE = "functions"
Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ClientName:
    """How the client knows a function; ``namespace`` "" for none."""

    name: str
    namespace: str = ""
    custom: bool = False


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The functions that the model sees, and their names at the client by those that the model uses.

    ``shown``: the tools as a reply repeats them. ``warnings``: what was left out.
    """

    tools: Tools = field(default_factory=Tools)
    names: Mapping[str, ClientName] = field(default_factory=dict)
    shown: Sequence[Json] = ()
    warnings: Sequence[str] = ()

    def named(self, name: str) -> ClientName:
        """The client's name of what the model calls `name`."""
        return self.names.get(name) or ClientName(name)


def model_name(name: str, namespace: object) -> str:
    """The name that the model uses."""
    if not isinstance(namespace, str) or namespace in ("", NO_NAMESPACE):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(
    given: object, choice: object, parallel: bool | None, additional: Sequence[tuple[object, str]] = ()
) -> ClientTools:
    """Both fields, checked together, and the ``additional`` lists of tools that stand in the input, each with its path.

    A tool that is listed again there is the later one. Raises `InvalidRequest`.
    """
    found = _Found()
    for entry, path in _entries(given, "tools"):
        found.read(entry, path, fresh=True)
    for listed, where in additional:
        for entry, path in _entries(listed, where):
            found.read(entry, path, fresh=False)
    mode, name, allowed = _choice(choice, found)
    tools = tuple(tool for tool in found.tools.values() if allowed is None or tool.name in allowed)
    warnings = found.warnings()
    if mode == "required" and not tools:
        if not found.skipped:
            raise InvalidRequest("tool_choice: asks for a tool, but tools is empty", "tool_choice")
        mode = "auto"
        warnings.append(NO_TOOL_LEFT)
    return ClientTools(Tools(tools, mode, name, parallel), found.names, found.shown, warnings)


def _entries(given: object, path: str) -> Iterator[tuple[object, str]]:
    if given is None:
        return
    if not isinstance(given, list):
        raise wrong_type(path, "an array", given)
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(f"{path}: must have at most {MAX_TOOLS} tools", path)
    for index, entry in enumerate(given):
        yield entry, f"{path}.{index}"


class _Found:
    """Collects tools one by one."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.names: dict[str, ClientName] = {}
        self.shown: list[Json] = []
        self.skipped: dict[str, int] = {}

    def read(self, entry: object, path: str, *, fresh: bool) -> None:
        """One entry of a list; ``fresh``: whether a name that is there already is an error."""
        if not isinstance(entry, dict):
            raise wrong_type(path, "an object", entry)
        kind = entry.get("type")
        match kind:
            case "function" | "custom":
                self._add(entry, path, "", "", fresh=fresh)
            case "namespace":
                self._namespace(entry, path, fresh=fresh)
            case str() if kind:
                self.skipped[kind] = self.skipped.get(kind, 0) + 1
                return
            case _:
                raise wrong_type(f"{path}.type", "a type such as function", kind)
        if kind == "function":
            told = {
                "description": entry.get("description") or "",
                "parameters": entry.get("parameters") or NO_PARAMETERS,
            }
            entry = {**entry, **told, "strict": entry.get("strict") is not False}
        self.shown.append(entry)

    def warnings(self) -> list[str]:
        """What was skipped, type by type."""
        return [
            f"{left_out('tools', kind, number)}: no model can use them here" for kind, number in self.skipped.items()
        ]

    def _namespace(self, entry: Mapping[str, Any], path: str, *, fresh: bool) -> None:
        name, about = name_and_description(entry, path)
        for tool, where in _entries(entry.get("tools"), f"{path}.tools"):
            if not isinstance(tool, dict):
                raise wrong_type(where, "an object", tool)
            if tool.get("type") not in ("function", "custom"):
                kind = str(tool.get("type"))
                self.skipped[kind] = self.skipped.get(kind, 0) + 1
                continue
            self._add(tool, where, name, about, fresh=fresh)
            about = ""  # said once, with the first of them

    def _add(self, entry: Mapping[str, Any], path: str, namespace: str, about: str, *, fresh: bool) -> None:
        custom = entry.get("type") == "custom"
        own, description = name_and_description(entry, path)
        name = model_name(own, namespace)
        if fresh and name in self.tools:
            raise InvalidRequest(f"{path}.name: two tools have the same name", f"{path}.name")
        if about:
            description = "\n\n".join(filter(None, [about, description]))
        if custom:
            tool = custom_tool(name, description, entry.get("format"), f"{path}.format")
        else:
            parameters = entry.get("parameters")
            if parameters is not None and not isinstance(parameters, dict):
                raise wrong_type(f"{path}.parameters", "a JSON Schema object", parameters)
            tool = Tool(name, description, parameters or NO_PARAMETERS, is_strict(entry, path), f"{path}.parameters")
        self.tools[name] = tool
        self.names[name] = ClientName(own, namespace, custom)


def _choice(given: object, found: _Found) -> tuple[Choice, str, frozenset[str] | None]:
    """Mode, the one function, and which may be called; None for all."""
    match given:
        case None | "auto":
            return "auto", "", None
        case "none":
            return "none", "", None
        case "required" | "any":
            return "required", "", None
        case {"type": "function", "function": {"name": str(name)}}:  # a chat's form
            return "required", _known(name, "tool_choice.name", found), None
        case {"type": "function" | "custom", "name": str(name)}:
            named = model_name(name, given.get("namespace")) if isinstance(given, dict) else name
            return "required", _known(named, "tool_choice.name", found), None
        case {"type": "allowed_tools", "tools": list(allowed)}:
            mode = given.get("mode", "auto") if isinstance(given, dict) else "auto"
            if mode not in ("auto", "required"):
                raise InvalidRequest('tool_choice.mode: must be "auto" or "required"', "tool_choice.mode")
            return "required" if mode == "required" else "auto", "", frozenset(_allowed(allowed, found))
        case {"type": str(kind)} if kind in found.skipped or kind not in ("function", "custom", "allowed_tools"):
            raise InvalidRequest(f"tool_choice.type: no model here can use tools of type {kind[:40]!r}", "tool_choice")
    raise InvalidRequest(
        'tool_choice: must be "none", "auto", "required", {"type": "function", "name": ...} or '
        '{"type": "allowed_tools", "mode": ..., "tools": [...]}',
        "tool_choice",
    )


def _allowed(given: Sequence[object], found: _Found) -> Iterator[str]:
    """The functions that are named; tools that were skipped can't be called anyway."""
    for index, entry in enumerate(given):
        path = f"tool_choice.tools.{index}"
        if not isinstance(entry, dict):
            raise wrong_type(path, "an object", entry)
        if entry.get("type") in ("function", "custom"):
            inner = entry.get(str(entry["type"]))
            name = inner.get("name") if isinstance(inner, dict) else entry.get("name")
            if not isinstance(name, str):
                raise wrong_type(f"{path}.name", "a name", name)
            yield _known(model_name(name, entry.get("namespace")), f"{path}.name", found)
        elif entry.get("type") == "namespace":
            yield from (name for name, known in found.names.items() if known.namespace == entry.get("name"))


def _known(name: str, path: str, found: _Found) -> str:
    """The model's name of what the client calls so; a namespace may be left out where one tool only is meant."""
    if name in found.tools:
        return name
    meant = [here for here, known in found.names.items() if known.name == name]
    if len(meant) != 1:
        raise InvalidRequest(f"{path}: no tool is called {name[:64]!r}", path)
    return meant[0]
