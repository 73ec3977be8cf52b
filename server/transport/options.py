"""The settings that the HTTP side needs, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.engine.cache.scope import Mode

MIB, DAY_S = 1024 * 1024, 86_400
MAX_CONNECTIONS = 8192
"""Default connection limit: some hundred megabytes if all of them send request heads."""
FORWARD_PREFIX = b"x-llama-server-proxy-header-"
"""The prefix of request headers that ``/cors-proxy`` forwards without it."""
IDLE_S = 60.0
"""Longest silence of a client in the middle of a body or of a stream that it should be reading."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Switches and limits of the HTTP side. Built from the settings by `server.app`."""

    metrics: bool = False  # GET /metrics answers
    metrics_open: bool = False  # without a key, too
    slots: bool = True  # GET /slots answers
    props: bool = False  # POST /props answers
    ui: bool = True  # there is a web page
    proxy: bool = False  # /cors-proxy forwards
    ui_config: Mapping[str, Any] = field(default_factory=dict)  # what the page begins with
    verbose: bool = False  # replies have details (`__verbose`) unless a request says otherwise
    timeout_s: float = 3600.0  # within which a body must have arrived
    idle_s: float = IDLE_S  # longest silence within a body, longest wait for a client to read a stream
    max_body_bytes: int = 64 * MIB
    max_bodies_bytes: int = 256 * MIB  # of all requests together
    sse_ping_interval: float = 30.0  # <= 0 = no pings
    max_connections: int = MAX_CONNECTIONS  # requests in progress
    api_prefix: str = ""
    cors_origins: str = "*"  # llama-server's, as the next three (llama.cpp common/common.h)
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    allowed_hosts: tuple[str, ...] = ()  # further names of this server in Host headers
    cache_scope: Mode | None = None  # None = by key where there are several
    predicts: bool = False  # POST /predict answers
    aliases: Mapping[tuple[str, str], str] = field(default_factory=dict)  # method and path -> an endpoint's own path
    admin_port: int = 0  # the only port for administration; 0 = all ports
    state_days: int = 30  # days after which stored responses are deleted; 0 = never
    lora_dir: Path | None = None  # below it are adapters that may be loaded at runtime; None = off
    closed: bool = False  # without a key nothing for pages of other sites; see `transport.cors`

    @property
    def keep_s(self) -> int | None:
        """Return for how many seconds stored objects are kept, None for as long as the client wants."""
        return self.state_days * DAY_S or None
