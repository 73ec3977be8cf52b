"""Parse the configured MCP servers, in the JSON of Cursor and llama-server (tools/server/server-mcp.cpp; docs/mcp.md).

In YAML the outer key is optional. ``url``, ``headers``, ``description`` and ``allowed_tools`` are Llamapool's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

DEFAULT_TIMEOUT_S = 30.0
ANY_LABEL = "*"
"""In lists of labels: all configured servers."""
_OUTER = "mcpServers"


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server: a program to start, or a URL."""

    label: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # merged over this process' environment
    cwd: str | None = None
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # of each HTTP request
    timeout_s: float = DEFAULT_TIMEOUT_S  # of a tool call
    description: str = ""
    allowed_tools: tuple[str, ...] | None = None  # None = all
    owner: str = ""  # the client whose request names the URL; "" = configured, which may be in an internal network


@dataclass(frozen=True, slots=True)
class McpRules:
    """The rules for requests: limits of one response, and allowed servers.

    ``labels``: configured servers that requests may use. ``web_search``: the server for web search; "" = none.
    """

    labels: tuple[str, ...] = ()
    web_search: str = ""
    max_rounds: int = 16
    max_s: float = 600.0
    max_chars: int = 100_000

    def allow(self, label: str) -> bool:
        """Return whether requests may use the configured server with this label."""
        return ANY_LABEL in self.labels or label in self.labels


class _Entry(BaseModel):
    """An entry of the JSON. Keys of other programs, such as ``type`` or ``autoApprove``, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    timeout_ms: Annotated[int, Field(ge=1)] = round(DEFAULT_TIMEOUT_S * 1e3)
    description: str = ""
    allowed_tools: tuple[str, ...] | None = None
    disabled: bool = False


def read_servers(config: Mapping[str, Any]) -> dict[str, McpServer]:
    """Return the configured servers by label. Skips entries without a command and a URL.

    Raises ValueError that names the entry.
    """
    entries = config.get(_OUTER, config)
    if not isinstance(entries, Mapping):
        raise ValueError(f"{_OUTER} should be an object of servers")
    servers = {}
    for label, fields in entries.items():
        try:
            entry = _Entry.model_validate(fields)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, (label, *fault["loc"])))
            raise ValueError(f"{where}: {fault['msg']}") from None
        if entry.command and entry.url:
            raise ValueError(f"{label}: has a command and a url; give one")
        if entry.url and not is_web_url(entry.url):
            raise ValueError(f"{label}.url: should be an http or https URL")
        if not entry.disabled and (entry.command or entry.url):
            env, headers = tuple(entry.env.items()), tuple(entry.headers.items())
            others = entry.model_dump(include={"command", "args", "cwd", "url", "description", "allowed_tools"})
            servers[label] = McpServer(label, env=env, headers=headers, timeout_s=entry.timeout_ms / 1e3, **others)
    return servers


def is_web_url(url: str) -> bool:
    """Return whether `url` is an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Return the host of a URL for which `is_web_url` holds."""
    return (urlsplit(url).hostname or "").rstrip(".")


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL for which `is_web_url` holds."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def named(labels: Iterable[str]) -> str:
    return ", ".join(sorted(labels)) or "none"
