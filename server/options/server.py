"""The option table of the server: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Flags and variables
are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from server.errors import ConfigError
from server.mcp.config import read_servers
from server.options.option import SettingsModel, option
from server.options.values import (
    MIB,
    AmountText,
    AutoBool,
    Bool,
    FilePath,
    Float,
    Int,
    JsonObject,
    OptionalPath,
    PathText,
    Place,
    SiteNames,
    Switch,
    TextList,
    check_host_pattern,
    check_registry,
    is_address,
    read_text,
    split_list,
)
from server.pool.memory import Budget, read_budget


class HubSettings(SettingsModel, group="Hub"):
    """Downloads of models. The cache folder is LLAMA_CACHE, HF_HUB_CACHE or HF_HOME; the hub is MODEL_ENDPOINT or
    HF_ENDPOINT.
    """

    hf_token: str = option("", "-hft --hf-token", env="HF_TOKEN", metavar="TOKEN", secret=True)
    """Access token of the Hugging Face hub; empty = the token stored by Hugging Face's tools."""
    offline: Bool = option(False, "--offline", env=True)
    """Use cached models only and send no request to a hub. A model that is not cached is an error."""
    docker_registry: str = option("", metavar="HOST", check=check_registry)
    """Registry for -dr names without one, such as ai/gemma3."""
    models_cache: AutoBool = option(None, off=("--no-models-cache",))
    """Also serve every cached model, as owner/name:QUANTIZATION; auto = unless --config, -m, -hf or a similar option
    selects models.
    """


class FetchSettings(SettingsModel, group="Files of requests"):
    media_fetch: SiteNames = option((), "--media-fetch", metavar="HOSTS")
    """Hosts from which http and https URLs in requests are fetched: off, on = all public hosts, or a list (example.com,
    *.example.com). Private networks are refused whatever a name resolves to, except IP addresses listed here.
    """
    media_path: OptionalPath = option(None, "--media-path", metavar="FOLDER")
    """Folder that file:// URLs in requests are relative to; empty = file:// URLs are refused."""
    video_fps: Float = option(4.0, "--video-fps", env=True, allow_inf_nan=False)
    """Video frames per second that a model is shown; 0 or less = all frames. Needs llamapool[video]."""
    video_timestamp_interval: Int = option(5000, "--video-timestamp-interval", env=True, metavar="MS")
    """Milliseconds between timestamps inserted among video frames; 0 or less = none."""
    document_pages: Int = option(500, "--document-pages", ge=1)
    """Maximum number of pages of a PDF in a request; a longer PDF is refused."""
    document_bytes: Int = option(32 * MIB, "--document-bytes", ge=1024)
    """Maximum size in bytes of a document in a request: PDF, text, Markdown, CSV or HTML."""
    document_seconds: Float = option(20.0, "--document-seconds", gt=0, allow_inf_nan=False)
    """Maximum CPU time in seconds for extracting the text of a document and rendering its pages."""


class McpSettings(SettingsModel, group="MCP"):
    mcp_servers: JsonObject = option(
        {},
        "--mcp-servers-json",
        env=True,
        metavar="JSON",
        env_forms={"LLAMA_ARG_MCP_SERVERS_CONFIG": read_text},
        forms={"--mcp-servers-config": ("FILE", read_text)},
        secret=True,
        check=read_servers,
    )
    """MCP servers by label: command, args, env, cwd and timeout_ms of a program started with this server's permissions,
    or url and headers. Their tools are listed at /tools for the web UI, and with mcp_api for API requests. Sets
    cors_origins to localhost unless given. Needs llamapool[mcp].
    """
    mcp_api: TextList = option((), metavar="LABEL,...", text=split_list)
    """Labels of mcp_servers that /v1/responses and /v1/messages may use; * = all, empty = off. A key in the keys file
    also needs them in its mcp list.
    """
    mcp_hosts: SiteNames = option((), metavar="HOSTS")
    """Hosts of MCP servers that requests may name by URL: off, on = all public hosts, or a list as in media_fetch.
    Private networks are refused, except IP addresses listed here.
    """
    mcp_web_search: str = option("", metavar="LABEL")
    """Label of the MCP server that implements the Responses API's web_search; empty = web_search is skipped."""
    mcp_max_rounds: Int = option(16, ge=1, le=128)
    """Maximum number of rounds of tool calls within one response; then the model must answer."""
    mcp_max_s: Int = option(600, ge=1)
    """Maximum time in seconds for all tool calls of one response."""
    mcp_max_chars: Int = option(100_000, ge=1)
    """Maximum number of characters of a tool result that the model sees; the rest is truncated."""


TOOLS = (
    *("read_file", "file_glob_search", "grep_search", "exec_shell_command", "write_file", "edit_file"),
    *("get_info", "all"),
)


def _known_tool(name: str) -> None:
    if name not in TOOLS:
        raise ValueError(f"unknown tool '{name}'; known: {', '.join(TOOLS)}")


def _source(value: str) -> None:
    if value not in ("loopback", "*") and not re.fullmatch(r"https?://(\*\.)?[\w.-]+(:(\d+|\*))?", value, re.ASCII):
        raise ValueError(
            "should be loopback, * or an origin such as https://mcp.example.com or https://*.example.com:8443"
        )


class PageSettings(SettingsModel, group="Web page"):
    ui: Bool = option(True, "--ui --webui", env=True, off=("--no-ui", "--no-webui"))
    """Serve the web UI at / ."""
    ui_config: JsonObject = option(
        {},
        "--ui-config --webui-config",
        env=True,
        metavar="JSON",
        env_forms={"LLAMA_ARG_UI_CONFIG_FILE": read_text},
        forms={"--ui-config-file": ("FILE", read_text), "--webui-config-file": ("FILE", read_text)},
    )
    """Default settings of the web UI as JSON, with llama-server's names: systemMessage, temperature, top_p, top_k,
    min_p, max_tokens, theme, mcpServers. Others apply to llama-server's own UI only.
    """
    ui_connect: TextList = option(("loopback",), "--ui-connect", metavar="ORIGIN,...", text=split_list, check=_source)
    """Origins of MCP servers to which the web UI may connect from the browser: loopback = the user's own machine,
    https://mcp.example.com, https://*.example.com, or * = all. Empty = this server only.
    """
    ui_mcp_proxy: Bool = option(
        False, "--ui-mcp-proxy --webui-mcp-proxy", env=True, off=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy")
    )
    """Serve /cors-proxy?url=, which forwards requests of llama-server's UI to MCP servers at any address this machine
    reaches.
    """
    tools: TextList = option((), "--tools", env=True, metavar="A,B", text=split_list, check=_known_tool)
    """Built-in tools that a model may run on this machine through the web UI, with the server's permissions: read_file,
    file_glob_search, grep_search, exec_shell_command, write_file, edit_file, get_info, or all. Sets cors_origins to
    localhost unless given; without an API key only clients on this machine may use them.
    """
    agent: Bool = option(False, "-ag --agent", env=True, off=("-no-ag", "--no-agent"))
    """Enable all tools and ui_mcp_proxy."""
    log_bodies: Bool = option(False)
    """Keep the bodies of the last 100 requests and replies in memory for the web UI's request view. Needs a key with
    scope props; without keys, a client on this machine.
    """
    path: OptionalPath = option(None, "--path", env="LLAMA_ARG_STATIC_PATH", metavar="FOLDER")
    """Folder of files to serve instead of the web UI. Everybody may read them, even if there are API keys."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        return ("all",) if self.agent else self.tools


def _state(value: str) -> None:
    if is_address(value) and not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("should be auto, memory, a file, or a URL that begins with redis://, rediss:// or unix://")


class StateSettings(SettingsModel, group="State"):
    state: PathText = option(
        "auto", "--state", metavar="FILE|URL", check=_state, is_path=True, words=("auto", "memory")
    )
    """SQLite file for stored responses, conversations, files and batches. auto = llamapool/state.sqlite3 in the XDG
    state directory; memory = no file: everything is lost at exit. redis://, rediss:// or unix:// = a Redis server that
    replicas share, which also has rate limits, usage and resumable streams (extra redis).
    """
    state_quota: Int = option(1024, metavar="MIB", ge=1)
    """MiB that each API key may store; without keys, all clients together. The least recently used responses are
    deleted first.
    """
    state_days: Int = option(30, metavar="DAYS", ge=0)
    """Days after which responses, batches and their files expire; 0 = never. Conversations and other files stay."""
    reasoning_key_file: FilePath | None = option(None)
    """File with a secret on each line, for the reasoning that clients keep in signature and encrypted_content. The
    first one encrypts, all decrypt. Replicas need the same file. none = a secret next to the state file, created at the
    first start; with state memory, a secret that ends with the server."""


class TelemetrySettings(SettingsModel, group="Telemetry"):
    otel: Bool = option(False, "--otel")
    """Send an OpenTelemetry trace of each request to OTEL_EXPORTER_OTLP_ENDPOINT. Needs llamapool[otel]."""
    kv_events: str = option("", "--kv-events", metavar="ENDPOINT")
    """ZMQ endpoint for KV cache events in vLLM's format: tcp://*:5557 binds, tcp://router:5557 connects. Subscribers
    can read the tokens of prompts. Needs llamapool[events].
    """
    kv_events_replay: str = option("", "--kv-events-replay", metavar="ENDPOINT")
    """ZMQ endpoint that replays missed KV events, e.g. tcp://*:5558."""
    kv_events_pod: str = option("", "--kv-events-pod", metavar="NAME")
    """Name of this server in KV events, as the router knows it. Default: the host name."""


VERBOSITY_ALL = 2**31 - 1
VERBOSITY_DETAILED = 10  # from here on replies carry ``__verbose`` (llama.cpp tools/server/server-schema.cpp)


def _prefix(value: str) -> None:
    if not value.startswith("/") or value.endswith("/"):
        raise ValueError("should start with / and not end with it")


class ListenSettings(SettingsModel, group="Server"):
    host: TextList = option(("127.0.0.1",), "--host", env=True, metavar="HOST", text=split_list, min_length=1)
    """Addresses to listen on, separated by commas. An address that ends in .sock is a Unix socket."""
    port: Int = option(8080, "--port", env=True, ge=0, le=65535)
    """TCP port; 0 = any free port."""
    address_file: OptionalPath = option(None)
    """File for the server's addresses, one per line, removed at exit. `llamapool health` reads it, so a container's
    health check needs no flags.
    """
    reuse_port: Bool = option(False, "--reuse-port", env=True)
    """Set SO_REUSEPORT: other processes may listen on the same port, and the system distributes connections."""
    admin_port: Int = option(0, ge=0, le=65535)
    """Separate TCP port for administration: models, slots, LoRA, props and metrics (every key scope except `infer`).
    These endpoints are then a 404 on the main port. 0 = off.
    """
    admin_host: str = option("127.0.0.1", metavar="HOST")
    """Address on which the administration port listens."""
    api_prefix: str = option("", "--api-prefix", env=True, metavar="PATH", check=_prefix)
    """Prefix of every endpoint's path, e.g. /llm."""
    predict_route: str = option("", metavar="PATH", check=_prefix)
    """Path of Vertex AI's prediction protocol, below api_prefix; empty = off. Set by AIP_PREDICT_ROUTE if AIP_MODE is
    PREDICTION.
    """
    health_route: str = option("", metavar="PATH", check=_prefix)
    """Additional path of /health, below api_prefix; empty = off. Set by AIP_HEALTH_ROUTE."""
    ssl_key_file: FilePath | None = option(None, "--ssl-key-file", env=True)
    """PEM file with the TLS private key. Needs ssl_cert_file."""
    ssl_cert_file: FilePath | None = option(None, "--ssl-cert-file", env=True)
    """PEM file with the TLS certificate. Needs ssl_key_file."""
    timeout_s: Float = option(3600.0, "-to --timeout", env=True, gt=0)
    """Seconds within which a request body must arrive completely. Replies have no time limit."""
    idle_s: Float = option(60.0, gt=0)
    """Seconds a client may pause while it sends a body or reads a stream."""
    max_body_bytes: Int = option(64 * MIB, ge=1024)
    """Largest request body in bytes; larger ones get 413."""
    max_bodies_bytes: Int = option(0, ge=0)
    """Total bytes of the bodies of all running requests; further requests get 503. 0 = four times max_body_bytes."""
    max_connections: Int = option(0, ge=0)
    """Concurrent requests and connections. Above them, requests get 503 with Retry-After, except health checks.
    0 = the process's limit of open files minus 256, at most 8192.
    """
    keep_alive_s: Int = option(75, ge=1)
    """Seconds before an idle connection is closed. Must exceed the proxy's own idle timeout: nginx and AWS ALB 60,
    Caddy 120, Google load balancers 600.
    """
    max_preparing: Int = option(1024, ge=0)
    """Requests that may be in preparation at once (waiting for their model, rendering, tokenizing); further ones get
    429 with Retry-After. 0 = unlimited.
    """
    sse_ping_interval: Int = option(30, "--sse-ping-interval", env=True, ge=-1)
    """Seconds between keep-alive comments on a silent stream; -1 or 0 = none."""
    threads_http: Int = option(-1, "--threads-http", env=True, ge=-1)
    """Threads that render templates and tokenize for one client; one more is for all. -1 or 0 = automatic."""
    shutdown_delay_s: Float = option(0.0, ge=0)
    """Seconds after SIGTERM during which requests are still accepted while /readyz returns 503, so that load balancers
    notice.
    """
    watchdog_s: Float = option(600.0, ge=0)
    """Seconds after which a step counts as hung: the model fails, its requests end, all stacks are logged, and /livez
    returns 503. With isolation: process the model's process is killed and restarted instead; so is one whose load
    makes no progress for as long (at least 60 s). 0 = off.
    """
    memory_reserve: Int = option(128, ge=0, metavar="MIB")
    """MiB of memory to keep free, in the control group or the machine. Below it, /readyz returns 503, and the largest
    sandbox process is killed with its request (grammar compilation, template rendering, media decoding). 0 = off.
    """
    drain_s: Float = option(30.0, ge=0)
    """Seconds that running requests may take to finish at shutdown."""

    @property
    def route_aliases(self) -> dict[tuple[str, str], str]:
        """The endpoint's own path, by method and path, of paths that the operator chose."""
        chosen = (("POST", self.predict_route, "/predict"), ("GET", self.health_route, "/health"))
        return {(method, path): own for method, path, own in chosen if path not in ("", own)}

    def problems(self) -> Iterator[str]:
        if self.admin_port and self.admin_port == self.port:
            yield "admin_port and port must differ"
        if self.admin_port and self.admin_host.endswith(".sock"):
            yield "admin_host must be an address, as administration is recognised by its TCP port"
        if 0 < self.max_bodies_bytes < self.max_body_bytes:
            yield "max_bodies_bytes must be at least max_body_bytes"
        if (self.ssl_key_file is None) is not (self.ssl_cert_file is None):
            yield "ssl_key_file and ssl_cert_file belong together; give both"


def _key_list(text: str) -> list[str]:
    """``--api-key "$KEY"`` with KEY unset must not open the server to everybody: no key at all is an empty key."""
    return split_list(text) or [""]


def _no_empty_key(key: str) -> None:
    if not key.strip():
        raise ValueError("contains an empty key; give a key, or leave the option out to serve everybody")


class AccessSettings(SettingsModel, group="Access"):
    api_keys: TextList = option(
        (),
        "--api-key",
        env="LLAMA_API_KEY",
        metavar="KEY,...",
        text=_key_list,
        repeat=True,
        secret=True,
        check=_no_empty_key,
    )
    """API keys, separated by commas. Each request must carry one; empty = no authentication."""
    api_key_file: FilePath | None = option(None, "--api-key-file", env=True)
    """File with more API keys, one per line; lines starting with # are comments."""
    keys_file: FilePath | None = option(None)
    """YAML file of keys with scopes, models, limits and expiry; create it with `llamapool keys add FILE NAME`. Reloaded
    when it changes.
    """
    cache_scope: Literal["auto", "server", "key", "request"] = option("auto")
    """Cache namespace: which requests may reuse a computed prefix: server = all, key = the same key, request = none.
    auto = key if there are several keys, otherwise server. A request's cache_salt restricts it further.
    """
    closed: Bool = option(False)
    """Harden a server that others can reach: refuse to start on a network address without a key; without a key, refuse
    pages of other sites for all endpoints; accept only explicitly listed cors_origins.
    """
    allowed_hosts: TextList = option((), metavar="A,B", text=split_list, check=check_host_pattern)
    """Host names under which clients without a key may reach a loopback address, e.g. through a proxy. Always allowed:
    IP addresses, names without a dot, localhost, .local, .internal, and this machine's names. *.example.com =
    subdomains, * = all.
    """
    metrics: Bool = option(False, "--metrics", env="LLAMA_ARG_ENDPOINT_METRICS")
    """Serve GET /metrics for Prometheus."""
    metrics_open: Bool = option(False)
    """Serve GET /metrics without a key, for scrapers that send none, such as llm-d's endpoint picker. Metrics name
    models, keys and adapters, but contain no prompts.
    """
    slots: Bool = option(True, "--slots", env="LLAMA_ARG_ENDPOINT_SLOTS", off=True)
    """Serve GET /slots, which shows the state of each slot."""
    slot_save_path: Place | None = option(None, "--slot-save-path", metavar="FOLDER")
    """Folder, or URL such as s3://bucket/folder (docs/scaling.md), for POST /slots/{id}?action=save|restore|erase;
    empty = off.
    """
    slot_save_quota: Int = option(0, metavar="MIB", ge=0)
    """MiB of saved slots, per key if there are several; 0 = unlimited."""
    slot_save_secret_file: FilePath | None = option(None)
    """File with a secret that signs saved slots, for a folder that others can write to. Unsigned files, including
    llama-server's, are not restored.
    """
    lora_dir: OptionalPath = option(None, "--lora-dir", metavar="FOLDER")
    """Folder with LoRA adapters that POST /v1/load_lora_adapter may load while the server runs; empty = off."""
    props: Bool = option(False, "--props", env="LLAMA_ARG_ENDPOINT_PROPS")
    """Serve POST /props. As in llama-server, no property can be changed yet."""
    cors_origins: str = option("*", "--cors-origins", env=True, metavar="A,B")
    """Origins that browsers may call from; localhost = pages served from this machine."""
    cors_methods: str = option("GET, POST, DELETE, OPTIONS", "--cors-methods", env=True, metavar="A,B")
    """HTTP methods allowed for cross-origin requests."""
    cors_headers: str = option("*", "--cors-headers", env=True, metavar="A,B")
    """Headers allowed for cross-origin requests."""
    cors_credentials: Bool = option(True, "--cors-credentials", env=True, off=True)
    """Allow credentials in cross-origin requests."""


def _endpoint(value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"'{value}' should be HOST:PORT")


class PoolSettings(SettingsModel, group="Model pool"):
    models_dir: OptionalPath = option(None, "--models-dir", env=True, metavar="FOLDER")
    """Folder to serve models from: each GGUF file, split model and multimodal folder, under its name."""
    models_preset: FilePath | None = option(None, "--models-preset", env=True)
    """INI preset file in llama-server's format, with one section per model."""
    rpc: TextList = option((), "--rpc", env=True, metavar="HOST:PORT,...", text=split_list, check=_endpoint)
    """Addresses of llama.cpp rpc-servers whose devices are used like GPUs. The library needs its RPC backend, and ends
    the process if such a machine stops answering.
    """
    watch_config: Bool = option(False)
    """Reload the YAML file and the preset when they change, as SIGHUP does. Removed and changed models are unloaded,
    new and changed startup models are loaded; the others are unaffected.
    """
    models_max: Int = option(4, "--models-max", env=True, ge=0, also="max_loaded_models")
    """Maximum number of loaded models; the least recently used idle model is unloaded for another. 0 = unlimited."""
    memory: AmountText = option("", metavar="AMOUNT", check=read_budget, also="gpu_memory_utilization")
    """Memory budget of all models: 80%, 12GiB, 4096 (MiB), or per device CPU=12GiB,CUDA0=80%. Empty = the memory free
    at the first load, minus 1 GiB or a quarter. Idle models with the lowest value per byte are unloaded first.
    """
    caches_ram: Int = option(-2, metavar="MIB", ge=-2)
    """MiB of the budget for the RAM caches of all models: cache_ram, and media_cache (at most a quarter of it). -1 =
    all that models leave, -2 = automatic: 8192, at most a quarter of the memory.
    """
    models_wait_s: Float = option(300.0, ge=0)
    """Seconds a request waits for memory for its model; then 503 with Retry-After. 0 = unlimited."""
    models_autoload: Bool = option(True, "--models-autoload", env=True, off=True)
    """Load a model when a request names it. If off, only POST /models/load loads models."""

    @property
    def budget(self) -> Budget:
        """The memory that models and caches may take together."""
        return replace(read_budget(self.memory), caches=self.caches_ram)


class LogSettings(SettingsModel, group="Logging"):
    verbosity: Int = option(
        3,
        "-lv --verbosity --log-verbosity",
        env="LLAMA_ARG_LOG_VERBOSITY",
        constants=dict.fromkeys(("-v", "--verbose", "--log-verbose"), VERBOSITY_ALL),
        ge=0,
    )
    """Log level: 0 and 1 = errors, 2 = warnings, 3 = information, 4 and more = debugging; -v = everything. From 10 on,
    replies contain `__verbose`, as with `"verbose": true` in a request.
    """
    log_disable: Bool = option(False, "--log-disable")
    """Write no log at all."""
    log_jsonl: Bool = option(False, "--log-jsonl", env=True, off=True)
    """Write one JSON object per line: type, time (Unix seconds), level, origin, msg, and for requests their id and
    timings.
    """
    log_file: FilePath | None = option(None, "--log-file", env=True)
    """Additional log file. It may be rotated by renaming or truncating."""
    audit_log: FilePath | None = option(None, "--audit-log")
    """File for one JSON object per administrative request: time, key, client address, endpoint, status, and model.
    Refused requests are included. It may be rotated by renaming or truncating.
    """
    log_colors: Switch = option("auto", "--log-colors", env=True)
    """Colored output; auto = if standard error is a terminal."""
    log_prefix: Bool = option(True, "--log-prefix", env=True, off=True)
    """Start each line with level and origin."""
    log_timestamps: Bool = option(True, "--log-timestamps", env=True, off=True)
    """Start each line with the time."""


class ServerSettings(
    LogSettings,
    TelemetrySettings,
    HubSettings,
    PoolSettings,
    FetchSettings,
    PageSettings,
    McpSettings,
    StateSettings,
    AccessSettings,
    ListenSettings,
):
    """The YAML's ``server``."""

    def all_api_keys(self) -> tuple[str, ...]:
        """Return the keys given and those in the file. Raises ConfigError when it cannot be read or holds none."""
        if self.api_key_file is None:
            return self.api_keys
        lines = read_text(self.api_key_file, "server.api_key_file: ").splitlines()
        keys = [line for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ConfigError(
                f"server.api_key_file: {self.api_key_file} contains no key; add one, or leave the option out to serve "
                "everybody"
            )
        return (*self.api_keys, *keys)
