"""``tools`` and ``tool_choice`` of OpenAI's Responses, and how the client knows what the model calls.

The model sees functions only. Those of a ``namespace`` are called ``namespace__name``, and come back with their own
name beside ``namespace`` (Codex 0.169 answers a name alone with "unsupported call"); ``functions`` is OpenAI's word for
no namespace, so it is left out of the name. A ``custom`` tool is a function of one text, ``input``. Tools that OpenAI
runs itself are skipped with a warning, and are an error only where ``tool_choice`` names one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.conversation.conversation import NO_PARAMETERS, Tool, Tools
from server.errors import InvalidRequest
from server.wire.common import Json
from server.wire.custom_tools import custom_tool
from server.wire.fields import objects_in, wrong_type
from server.wire.tools import MAX_TOOLS, Named, choose, function_tool, name_and_description, no_tool, read_choice
from server.wire.warnings import left_out

NO_NAMESPACE = "functions"


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
    warnings = found.warnings()
    tools = choose(
        tuple(found.tools.values()),
        read_choice(choice),
        parallel,
        warnings,
        skipped=bool(found.skipped),
        find=found.meant,
    )
    return ClientTools(tools, found.names, found.shown, warnings)


def _entries(given: object, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise InvalidRequest(f"{path}: must have at most {MAX_TOOLS} tools", path)
    return objects_in([] if given is None else given, path)


class _Found:
    """Collects tools one by one."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.names: dict[str, ClientName] = {}
        self.shown: list[Json] = []
        self.skipped: dict[str, int] = {}

    def read(self, entry: dict[str, Any], path: str, *, fresh: bool) -> None:
        """One entry of a list; ``fresh``: whether a name that is there already is an error."""
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

    def meant(self, named: Named) -> Collection[str]:
        """The model's name of what the client calls so; a namespace may be left out where one tool only is meant."""
        if not named.name:
            return [here for here, known in self.names.items() if known.namespace == named.namespace]
        name = model_name(named.name, named.namespace)
        if name in self.tools:
            return (name,)
        meant = [here for here, known in self.names.items() if known.name == name]
        if len(meant) != 1:
            raise no_tool(named)
        return meant

    def _namespace(self, entry: Mapping[str, Any], path: str, *, fresh: bool) -> None:
        name, about = name_and_description(entry, path)
        for tool, where in _entries(entry.get("tools"), f"{path}.tools"):
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
            tool = function_tool(entry, path, name, description)
        self.tools[name] = tool
        self.names[name] = ClientName(own, namespace, custom)
