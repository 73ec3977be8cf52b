"""The common part of tools in all dialects: the list, the names, and ``tool_choice``.

Every dialect also accepts the other dialects' forms (OpenAI's of chat and of Responses, Anthropic's, Mistral's
``any``), because proxies and libraries mix them. `choose` finds the tool that a name refers to.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from server.chat.conversation import NO_PARAMETERS, Tool, Tools
from server.dialects.fields import as_object, json_text, objects_in, wrong_type
from server.dialects.tool_types import RESPONSES, ToolType, left_out_reason
from server.dialects.warnings import NO_TOOL_LEFT, left_out, shown
from server.errors import InvalidRequest

MAX_TOOLS = 1024
NO_NAMESPACE = "functions"


def tool_list(given: object, read: Callable[[dict[str, Any], str], Iterable[Tool]], name_key: str) -> tuple[Tool, ...]:
    """Apply `read` to each entry and its path, and return the tools.

    `name_key`: the member with an entry's name. Raises `InvalidRequest` if it is not a list, is too long, or has a
    duplicate name.
    """
    if given is None:
        return ()
    if isinstance(given, list) and len(given) > MAX_TOOLS:
        raise InvalidRequest(f"tools: must have at most {MAX_TOOLS} tools", "tools")
    tools: dict[str, Tool] = {}
    for entry, where in objects_in(given, "tools"):
        for tool in read(entry, where):
            if tools.setdefault(tool.name, tool) is not tool:
                path = f"{where}.{name_key}"
                raise InvalidRequest(f"{path}: two tools have the same name", path)
    return tuple(tools.values())


def name_and_description(given: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return name and description of a tool or function at `path`; "" = no description. Raises `InvalidRequest`."""
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "a name", name)
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{path}.description", "a string", description)
    return name, description or ""


@dataclass(frozen=True, slots=True)
class ClientName:
    """How the client knows a function. ``namespace`` may be a toolset, "" for none. ``type`` is of `tool_types`."""

    name: str
    namespace: str = ""
    custom: bool = False
    type: ToolType | None = None


def model_name(name: str, namespace: object) -> str:
    """The name that the model uses."""
    if not isinstance(namespace, str) or namespace in ("", NO_NAMESPACE):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def is_strict(given: Mapping[str, Any], path: str) -> bool:
    """``strict`` of a tool or its function at `path`. Raises `InvalidRequest`."""
    if not isinstance(given.get("strict"), bool | None):
        raise wrong_type(f"{path}.strict", "a boolean", given["strict"])
    return given.get("strict") is True


def function_tool(given: Mapping[str, Any], path: str, name: str, description: str) -> Tool:
    """A function at `path` with its ``parameters``, under that name. Raises `InvalidRequest`."""
    parameters = given.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{path}.parameters", "a JSON Schema object", parameters)
    return Tool(name, description, parameters or NO_PARAMETERS, is_strict(given, path), f"{path}.parameters")


CallMode = Literal["none", "auto", "required"]
_MODES: dict[object, CallMode] = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_NAMING = ("function", "custom", "tool")
_FORMS = (
    'must be "none", "auto", "required", {"type": "function", "function": {"name": ...}}, '
    '{"type": "allowed_tools", ...}, or Anthropic\'s {"type": "auto" | "any" | "tool" | "none"}'
)


@dataclass(frozen=True, slots=True)
class Named:
    """A tool by the client's name, or a whole ``namespace`` if `name` is "". ``at``: path of the name."""

    name: str
    at: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``one``: the tool that must be called. ``allowed``: the tools that may be called, None for all. ``parallel``:
    whether several calls are allowed, None if unspecified. ``warnings``: allowed tools of omitted types.
    """

    mode: CallMode = "auto"
    one: Named | None = None
    allowed: tuple[Named, ...] | None = None
    parallel: bool | None = None
    warnings: tuple[str, ...] = ()


def read_choice(given: object) -> ToolChoice:
    """Check it as far as that needs no tools. Raises `InvalidRequest`."""
    if given is None:
        return ToolChoice()
    if isinstance(given, str) and given in _MODES:
        return ToolChoice(_MODES[given])
    if not isinstance(given, dict):
        raise InvalidRequest(f"tool_choice: {_FORMS}", "tool_choice")
    kind = given.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"tool_choice.type: {_FORMS}", "tool_choice.type")
    if kind == "allowed_tools":
        return _among(given)
    single = given.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise wrong_type("tool_choice.disable_parallel_tool_use", "a boolean", single)
    parallel = False if single else None
    if kind in _MODES:
        return ToolChoice(_MODES[kind], parallel=parallel)
    if kind in RESPONSES:
        return ToolChoice("required", Named(RESPONSES[kind].name, "tool_choice.type"), parallel=parallel)
    if kind not in _NAMING:
        reason = f"no model here can use tools of type {shown(kind)}"
        raise InvalidRequest(f"tool_choice.type: {reason}", "tool_choice.type")
    return ToolChoice("required", _named(given, "tool_choice"), parallel=parallel)


def choose(
    tools: Sequence[Tool],
    choice: ToolChoice,
    parallel: bool | None,
    warnings: list[str],
    *,
    skipped: bool,
    names: Mapping[str, ClientName] | None = None,
) -> Tools:
    """Return the tools that may be called, and whether one must be. `names`: the client's names, by the model's.

    Where some were `skipped` and none is left, one that must be called is left out, too, with one of the `warnings`.
    Raises `InvalidRequest` for a tool that is not there.
    """
    names = {tool.name: ClientName(tool.name) for tool in tools} if names is None else names
    mode, name = choice.mode, ""
    if choice.one is not None:
        if not tools and not skipped:
            raise _none_given()
        (name,) = meant(choice.one, names)
    if choice.allowed is not None:
        warnings += choice.warnings
        allowed = {name for named in choice.allowed for name in meant(named, names)}
        tools = [tool for tool in tools if tool.name in allowed]
    if mode == "required" and not tools:
        if not skipped:
            raise _none_given()
        warnings.append(NO_TOOL_LEFT)
        mode = "auto"
    return Tools(tuple(tools), mode, name, False if choice.parallel is False else parallel)


def meant(named: Named, names: Mapping[str, ClientName]) -> Collection[str]:
    """Return the model's names for a client's name.

    The namespace is optional if the name is unique. `names`: the client's names, by the model's. Raises
    `InvalidRequest` if there is no such tool.
    """
    if not named.name:
        return [here for here, known in names.items() if known.namespace == named.namespace]
    name = model_name(named.name, named.namespace)
    if name in names:
        return (name,)
    found = [here for here, known in names.items() if known.name == name]
    if len(found) != 1:
        raise InvalidRequest(f"{named.at}: no tool is called {shown(named.name)}", named.at)
    return found


def _none_given() -> InvalidRequest:
    return InvalidRequest("tool_choice: asks for a tool, but tools is empty", "tool_choice")


def _named(given: Mapping[str, Any], path: str) -> Named:
    """The name in ``{"type": "function", "function": {"name": ...}}``, or a flat one."""
    kind, inner = given["type"], given
    if kind in given:
        path, inner = f"{path}.{kind}", given[kind]
        inner = as_object(inner, path)
    name, namespace = inner.get("name"), given.get("namespace")
    if not isinstance(name, str) or not name:
        raise wrong_type(f"{path}.name", "the name of a tool", name)
    return Named(name, f"{path}.name", namespace if isinstance(namespace, str) else "")


def _among(given: Mapping[str, Any]) -> ToolChoice:
    """Return the listed tools (one level deeper in a chat), without unsupported types."""
    path, inner = "tool_choice", given
    if "allowed_tools" in given:
        path = f"{path}.allowed_tools"
        inner = as_object(given["allowed_tools"], path)
    mode, listed = inner.get("mode", "auto"), inner.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f'{path}.mode: must be "auto" or "required"', f"{path}.mode")
    allowed, warnings = [], []
    for entry, where in objects_in(listed, f"{path}.tools"):
        if entry.get("type") in _NAMING:
            allowed.append(_named(entry, where))
        elif entry.get("type") == "namespace" and isinstance(entry.get("name"), str):
            allowed.append(Named("", f"{where}.name", entry["name"]))
        elif isinstance(kind := entry.get("type"), str) and kind in RESPONSES:
            allowed.append(Named(RESPONSES[kind].name, f"{where}.type"))
        else:
            warnings.append(f"{left_out('allowed tools', str(kind), 1)}: {left_out_reason(str(kind))}")
    return ToolChoice(_MODES[mode], allowed=tuple(allowed), warnings=tuple(warnings))


class DeferredTools:
    """Collects the tools that messages introduce. ``waiting``: tools of the request with ``defer_loading``, by name."""

    def __init__(self, waiting: Mapping[str, Tool]) -> None:
        self.waiting = waiting
        self.introduced: dict[str, Tool] = {}

    def introduce(self, tool: Tool) -> str:
        """Return the text that defines `tool`, which may be called from there on."""
        self.introduced[tool.name] = tool
        shown = {"description": tool.description, "name": tool.name, "parameters": tool.parameters}
        return f"<function>{json_text(shown)}</function>\n"

    def refer(self, name: str) -> str:
        """Return the definition of the tool that a message refers to, or its name if there is no such tool."""
        tool = self.introduced.get(name) or self.waiting.get(name)
        return name if tool is None else self.introduce(tool)

    def with_offered(self, offered: Sequence[Tool], required: str = "") -> tuple[Tool, ...]:
        """Return the `offered` tools and the introduced ones, which are deferred.

        Templates explain how to call tools, so nothing is deferred if no tool is offered, or if the client requires
        a call of a waiting tool, named by `required`. An introduced definition replaces an offered one of the same
        name.
        """
        forced = {required: self.waiting[required]} if required in self.waiting else {}
        added = {**forced, **self.introduced}
        kept = []
        for tool in offered:
            other = added.pop(tool.name, tool)
            kept.append(tool if (other.function, other.text) == (tool.function, tool.text) else other)
        deferred = bool(kept) and not forced
        return (*kept, *(replace(tool, deferred=deferred) for tool in added.values()))
