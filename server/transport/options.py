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
"""Longest pause of a client that sends a body or reads a stream."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Switches and limits of the HTTP side. Built from the settings by `server.app`."""

    metrics: bool = False  # GET /metrics answers
    metrics_open: bool = False  # GET /metrics needs no key
    slots: bool = True  # GET /slots answers
    props: bool = False  # POST /props answers
    ui: bool = True  # the web UI is served
    proxy: bool = False  # /cors-proxy forwards
    ui_config: Mapping[str, Any] = field(default_factory=dict)  # initial settings of the web UI
    verbose: bool = False  # replies have details (`__verbose`) unless a request says otherwise
    timeout_s: float = 3600.0  # time limit for receiving a body
    idle_s: float = IDLE_S  # longest pause within a body, longest wait for a client to read a stream
    max_body_bytes: int = 64 * MIB
    max_bodies_bytes: int = 256 * MIB  # for all requests
    sse_ping_interval: float = 30.0  # <= 0 = no pings
    max_connections: int = MAX_CONNECTIONS  # requests in progress
    api_prefix: str = ""
    cors_origins: str = "*"  # llama-server's default, like the next three (llama.cpp common/common.h)
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    allowed_hosts: tuple[str, ...] = ()  # further names of this server in Host headers
    cache_scope: Mode | None = None  # None = by key if there are several keys
    predicts: bool = False  # POST /predict answers
    aliases: Mapping[tuple[str, str], str] = field(default_factory=dict)  # method and path -> an endpoint's own path
    admin_port: int = 0  # the only port for administration; 0 = all ports
    state_days: int = 30  # days after which stored responses are deleted; 0 = never
    lora_dir: Path | None = None  # folder of the adapters that may be loaded at runtime; None = off
    closed: bool = False  # refuse all requests of other sites' pages without a key; see `transport.cors`

    @property
    def keep_s(self) -> int | None:
        """Lifetime of stored objects in seconds, None = as long as the client requests."""
        return self.state_days * DAY_S or None
