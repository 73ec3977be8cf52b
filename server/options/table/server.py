"""The server's part of the option table: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Flags and variables
are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

from stat import S_ISCHR
from typing import ClassVar, Literal

from pydantic import model_validator

from server.errors import ConfigError
from server.options.table.fetching import FetchSettings
from server.options.table.hub import HubSettings
from server.options.table.mcp import McpSettings
from server.options.table.option import SettingsModel, option
from server.options.table.page import PageSettings
from server.options.table.state import StateSettings
from server.options.table.values import Bool, FilePath, Float, Int, Place, Switch, TextList, split_list
from server.pool.budget import read_budget


class TelemetrySettings(SettingsModel):
    """What is told beside logs and metrics."""

    group: ClassVar[str] = "Telemetry"

    otel: Bool = option(False, "--otel")
    """Send a trace of each request by OpenTelemetry, to where its own variables say (OTEL_EXPORTER_OTLP_ENDPOINT).
    Needs llamapool[otel]."""
    kv_events: str = option("", "--kv-events", metavar="ENDPOINT")
    """Where to publish which prompts' beginnings are held, over ZMQ as vLLM does: tcp://*:5557 is listened at,
    tcp://router:5557 connected to. Whoever subscribes reads the tokens of prompts. Needs llamapool[events]."""
    kv_events_replay: str = option("", "--kv-events-replay", metavar="ENDPOINT")
    """Where to answer who has missed some of these events, e.g. tcp://*:5558."""
    kv_events_pod: str = option("", "--kv-events-pod", metavar="NAME")
    """What these events call this server, as the router knows it; by default the host's name."""


MIB = 1024 * 1024
VERBOSITY_ALL = 2**31 - 1
VERBOSITY_DETAILED = 10  # from here on replies carry ``__verbose`` (llama.cpp tools/server/server-schema.cpp)


def _prefix(value: str) -> None:
    if not value.startswith("/") or value.endswith("/"):
        raise ValueError("should start with / and not end with it")


class ListenSettings(SettingsModel):
    """Where the server listens."""

    group: ClassVar[str] = "Server"

    host: TextList = option(("127.0.0.1",), "--host", env=True, metavar="HOST", text=split_list, min_length=1)
    """Addresses to listen on, separated by commas; one that ends in .sock is a Unix socket."""
    port: Int = option(8080, "--port", env=True, ge=0, le=65535)
    """TCP port; 0 = any free one."""
    address_file: FilePath | None = option(None)
    """File to which the server writes the addresses that it listens on, one on each line, and which it removes at its
    end. `llamapool health` reads it; a container's health check then needs no flags."""
    reuse_port: Bool = option(False, "--reuse-port", env=True)
    """Let other processes listen on the same port, too; the system divides connections between them."""
    admin_port: Int = option(0, ge=0, le=65535)
    """TCP port where what is for who runs the server is answered, and nowhere else: changes of models, slots, LoRA,
    props and metrics (the scopes of keys but `infer`). 0 = none: at every address."""
    admin_host: str = option("127.0.0.1", metavar="HOST")
    """Address of that port."""
    api_prefix: str = option("", "--api-prefix", env=True, metavar="PATH", check=_prefix)
    """Path in front of every endpoint, e.g. /llm."""
    predict_route: str = option("", metavar="PATH", check=_prefix)
    """Path of Vertex AI's prediction protocol, below api_prefix; empty = none. Vertex AI sets it by AIP_PREDICT_ROUTE
    where AIP_MODE is PREDICTION."""
    health_route: str = option("", metavar="PATH", check=_prefix)
    """Another path of /health, below api_prefix; empty = none. Vertex AI sets it by AIP_HEALTH_ROUTE."""
    ssl_key_file: FilePath | None = option(None, "--ssl-key-file", env=True)
    """PEM file with the TLS private key; needs ssl_cert_file."""
    ssl_cert_file: FilePath | None = option(None, "--ssl-cert-file", env=True)
    """PEM file with the TLS certificate; needs ssl_key_file."""
    timeout_s: Float = option(3600.0, "-to --timeout", env=True, gt=0)
    """Seconds within which a request's body must have arrived in all; a reply may take as long as it takes."""
    idle_s: Float = option(60.0, gt=0)
    """Longest silence in seconds of a client that sends a body, or that should be reading a stream."""
    max_body_bytes: Int = option(64 * MIB, ge=1024)
    """Largest request body in bytes."""
    max_bodies_bytes: Int = option(0, ge=0)
    """Most bytes of the bodies of all running requests together; the next get a 503. 0 = four times one's limit."""
    max_connections: Int = option(0, ge=0)
    """Connections at once. The next one takes the place of one without a request; where there is none, its requests get
    a 503 with Retry-After, but those for health. 0 = what the process may open, less 256, at most 8192."""
    keep_alive_s: Int = option(75, ge=1)
    """Seconds that a connection without a request stays open. It must be longer than a proxy in front of the server
    keeps its own: nginx and AWS's ALB 60, Caddy 120, Google's load balancers 600. When max_connections is reached,
    an idle connection makes room for a new one."""
    max_preparing: Int = option(1024, ge=0)
    """Requests that may be on their way to a queue at once: waiting for their model, or to be rendered and tokenized;
    the next one gets 429 with Retry-After. 0 = any."""
    sse_ping_interval: Int = option(30, "--sse-ping-interval", env=True, ge=-1)
    """Seconds between the comments that keep a silent stream open; -1 or 0 = none."""
    threads_http: Int = option(-1, "--threads-http", env=True, ge=-1)
    """Threads that render templates and tokenize; -1 or 0 = automatic."""
    shutdown_delay_s: Float = option(0.0, ge=0)
    """Seconds after SIGTERM in which requests are still taken while /readyz says 503: until load balancers notice."""
    watchdog_s: Float = option(600.0, ge=0)
    """Longest seconds of one step: then the model counts as failed, its requests end, all stacks are logged, and /livez
    says 503, since only a restart ends the step; of a model with isolation: process its process is killed and started
    again instead, and so is one whose load gets no further for as long (60 at least). 0 = any."""
    memory_reserve: Int = option(128, ge=0, metavar="MIB")
    """Memory in MiB that is kept free, of the control group or the machine. While less is left, /readyz says 503, and
    the sandbox process that takes the most is ended with its request: one that compiles a grammar, renders a template
    or decodes media. 0 = any."""
    drain_s: Float = option(30.0, ge=0)
    """Seconds that running requests may take to finish when the server stops."""

    @property
    def route_aliases(self) -> dict[tuple[str, str], str]:
        """The endpoint's own path, by method and path, of paths that the operator chose."""
        chosen = (("POST", self.predict_route, "/predict"), ("GET", self.health_route, "/health"))
        return {(method, path): own for method, path, own in chosen if path not in ("", own)}

    @model_validator(mode="after")
    def _fits_together(self) -> "ListenSettings":
        if self.admin_port and self.admin_port == self.port:
            raise ValueError("admin_port and port must differ")
        if 0 < self.max_bodies_bytes < self.max_body_bytes:
            raise ValueError("max_bodies_bytes must be at least max_body_bytes")
        if (self.ssl_key_file is None) is not (self.ssl_cert_file is None):
            raise ValueError("ssl_key_file and ssl_cert_file belong together; give both")
        return self


MAX_KEY_FILE_BYTES = 1 << 20


def _key_list(text: str) -> list[str]:
    """``--api-key "$KEY"`` with KEY unset must not open the server to everybody: no key at all is an empty key."""
    return split_list(text) or [""]


def _no_empty_key(key: str) -> None:
    if not key.strip():
        raise ValueError("holds an empty key; give a key, or leave the option out to serve everybody")


class AccessSettings(SettingsModel):
    """Who may use what."""

    group: ClassVar[str] = "Access"

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
    """Keys, separated by commas, one of which a request must carry; none = open to all."""
    api_key_file: FilePath | None = option(None, "--api-key-file", env=True)
    """File with further keys, one on each line; lines that start with # are comments."""
    keys_file: FilePath | None = option(None)
    """YAML file with keys that may do some things, to some amount, for some time; `llamapool keys add FILE NAME` makes
    one. It is read again when it changes."""
    cache_scope: Literal["auto", "server", "key", "request"] = option("auto")
    """Whose requests may use what one request had computed: everybody's, those with its key, or nobody's; auto = by key
    where there are several, else everybody's. A request's cache_salt bounds it further."""
    closed: Bool = option(False)
    """For a server that others can reach: it does not start on an address of the network without a key; without one,
    pages of other sites are refused everywhere, not only where they would change the server; and of cors_origins only
    origins that are named count."""
    allowed_hosts: TextList = option((), metavar="A,B", text=split_list)
    """Names under which clients without a key reach the server on loopback addresses, through a proxy for instance,
    beside addresses, names without a dot, localhost, .local, .internal and this machine's; *.example.com = all below
    it, * = any."""
    metrics: Bool = option(False, "--metrics", env="LLAMA_ARG_ENDPOINT_METRICS")
    """Serve GET /metrics for Prometheus."""
    metrics_open: Bool = option(False)
    """Whoever reaches the server may read GET /metrics, also where there are keys: for what scrapes without one, such
    as the llm-d router's endpoint picker. It names models, keys and adapters, and no prompts."""
    slots: Bool = option(True, "--slots", env="LLAMA_ARG_ENDPOINT_SLOTS", off=True)
    """Serve GET /slots."""
    slot_save_path: Place | None = option(None, "--slot-save-path", metavar="FOLDER")
    """Folder for POST /slots/{id}?action=save|restore|erase, which answers only with it; none = off. Or an address such
    as s3://bucket/folder (docs/scaling.md)."""
    slot_save_quota: Int = option(0, metavar="MIB", ge=0)
    """Most MiB of files there, of each key where there are several; 0 = any."""
    slot_save_secret_file: FilePath | None = option(None)
    """File with a secret that signs saved slots, for a folder that others write to; what it did not sign is not
    restored, llama-server's own files neither."""
    props: Bool = option(False, "--props", env="LLAMA_ARG_ENDPOINT_PROPS")
    """Serve POST /props; as in llama-server, there is no property yet that it can change."""
    cors_origins: str = option("*", "--cors-origins", env=True, metavar="A,B")
    """Origins that browsers may call from; localhost = only pages served from this machine."""
    cors_methods: str = option("GET, POST, DELETE, OPTIONS", "--cors-methods", env=True, metavar="A,B")
    """Methods that browsers may use."""
    cors_headers: str = option("*", "--cors-headers", env=True, metavar="A,B")
    """Headers that browsers may send."""
    cors_credentials: Bool = option(True, "--cors-credentials", env=True, off=True)
    """Browsers may send credentials."""


def _endpoint(value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"'{value}' should be HOST:PORT")


class PoolSettings(SettingsModel):
    """Several models."""

    group: ClassVar[str] = "Model pool"

    models_dir: FilePath | None = option(None, "--models-dir", env=True, metavar="FOLDER")
    """Folder whose GGUF files, split models and multimodal folders are served, each under its name."""
    models_preset: FilePath | None = option(None, "--models-preset", env=True)
    """llama-server's INI file with a section for each model."""
    rpc: TextList = option((), "--rpc", env=True, metavar="HOST:PORT,...", text=split_list, check=_endpoint)
    """Machines with llama.cpp's rpc-server, whose devices count as GPUs here. Needs a library with its RPC backend;
    which ends the whole process when such a machine is gone."""
    watch_config: Bool = option(False)
    """Read the YAML file and the preset again when they change, as SIGHUP does: models that are gone or configured
    otherwise are unloaded, the others don't notice."""
    models_max: Int = option(4, "--models-max", env=True, ge=0)
    """Most models loaded at once; the least recently used idle one makes room; 0 = no limit."""
    memory: str = option("", metavar="AMOUNT", check=read_budget)
    """Memory that models may take together: 80% or 12GiB, with commas of each device (CPU=12GiB,CUDA0=80%); empty =
    what is free when the first is loaded, but for 1 GiB or a quarter. Idle models make room: first those whose bytes
    spare the fewest seconds of loading, by how often and how lately they were used."""
    caches_ram: Int = option(-2, metavar="MIB", ge=-2)
    """MiB of that for what all models cache in RAM: prompts that lost their slot (cache_ram), and embeddings of images
    and audio (media_cache, a quarter of it at most), as far as models leave it; -1 = all that they leave, -2 =
    automatic: 8192, at most a quarter of the memory."""
    models_wait_s: Float = option(300.0, ge=0)
    """Longest seconds that requests wait for room for their model; then they get 503 with Retry-After. 0 = any."""
    models_autoload: Bool = option(True, "--models-autoload", env=True, off=True)
    """A request loads its model; without, only POST /models/load does."""


class LogSettings(SettingsModel):
    """Logging, to standard error unless a file is named."""

    group: ClassVar[str] = "Logging"

    verbosity: Int = option(
        3,
        "-lv --verbosity --log-verbosity",
        env="LLAMA_ARG_LOG_VERBOSITY",
        constants=dict.fromkeys(("-v", "--verbose", "--log-verbose"), VERBOSITY_ALL),
        ge=0,
    )
    """0 and 1 = errors, 2 = warnings, 3 = information, 4 and more = debugging; -v = everything. From 10 on
    replies of chats and completions carry `__verbose`, the native reply, as with `"verbose": true` in a request."""
    log_disable: Bool = option(False, "--log-disable")
    """No log at all."""
    log_jsonl: Bool = option(False, "--log-jsonl", env=True, off=True)
    """A JSON object on each line: type, time (unix seconds), level, origin, msg, and of what is about a request its id
    and what it took."""
    log_file: FilePath | None = option(None, "--log-file", env=True)
    """File that the log goes to, too. It may be moved away or cut meanwhile (logrotate, either way)."""
    log_colors: Switch = option("auto", "--log-colors", env=True)
    """Colours; auto = when standard error is a terminal."""
    log_prefix: Bool = option(True, "--log-prefix", env=True, off=True)
    """Level and origin in front of each line."""
    log_timestamps: Bool = option(True, "--log-timestamps", env=True, off=True)
    """Time in front of each line."""


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
        """The keys given and those in the file. Raises ConfigError when it cannot be read or holds none."""
        if self.api_key_file is None:
            return self.api_keys
        try:
            found = self.api_key_file.stat()
            if found.st_size > MAX_KEY_FILE_BYTES or S_ISCHR(found.st_mode):
                raise ConfigError(
                    f"server.api_key_file: {self.api_key_file} is no text file of at most {MAX_KEY_FILE_BYTES} bytes; "
                    "check the path"
                )
            lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise ConfigError(f"server.api_key_file: {self.api_key_file}: {reason}; check the path") from None
        keys = [line for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ConfigError(
                f"server.api_key_file: {self.api_key_file} holds no key; add one, or leave the option out to serve "
                "everybody"
            )
        return (*self.api_keys, *keys)
