"""Tools that a conversation introduces after its start, so that the prompt before them stays unchanged and cached.

A tool that a search found or a client added is defined in the message that introduces it, in the format of Claude's
models, and templates only get the request's initial tools. From then on it may be called and is constrained like the
others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from server.chat.conversation import Tool
from server.dialects.fields import json_text


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
