"""The server's part of the option table: one field, one option.

A field's docstring is its description in --help, docs/configuration.md and the YAML's schema. Flags and variables
are llama-server's (llama.cpp common/arg.cpp); a field without any is Llamapool's own.
"""

from stat import S_ISCHR
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from server.errors import ConfigError
from server.options.table.fetching import FetchSettings
from server.options.table.hub import HubSettings
from server.options.table.option import SettingsModel, option
from server.options.table.page import PageSettings
from server.options.table.telemetry import TelemetrySettings
from server.options.table.values import Bool, FilePath, Float, Int, Switch, TextList, split_list
from server.pool.budget import read_budget

MIB = 1024 * 1024
VERBOSITY_ALL = 2**31 - 1
VERBOSITY_DETAILED = 10  # from here on replies carry ``__verbose`` (llama.cpp tools/server/server-schema.cpp)


def _prefix(value: str) -> str:
    if value and (not value.startswith("/") or value.endswith("/")):
        raise ValueError("should start with / and not end with it")
    return value


class ListenSettings(SettingsModel):
    """Where the server listens."""

    group: ClassVar[str] = "Server"

    host: Annotated[TextList, option("--host", env="LLAMA_ARG_HOST", metavar="HOST", text=split_list)] = Field(
        ("127.0.0.1",), min_length=1
    )
    """Addresses to listen on, separated by commas; one that ends in .sock is a Unix socket."""
    port: Annotated[Int, option("--port", env="LLAMA_ARG_PORT"), Field(ge=0, le=65535)] = 8080
    """TCP port; 0 = any free one."""
    reuse_port: Annotated[Bool, option("--reuse-port", env="LLAMA_ARG_REUSE_PORT")] = False
    """Let other processes listen on the same port, too; the system divides connections between them."""
    admin_port: Annotated[Int, option(), Field(ge=0, le=65535)] = 0
    """TCP port where what is for who runs the server is answered, and nowhere else: changes of models, slots, LoRA,
    props and metrics (the scopes of keys but `infer`). 0 = none: at every address."""
    admin_host: Annotated[str, option(metavar="HOST")] = "127.0.0.1"
    """Address of that port."""
    api_prefix: Annotated[
        str, option("--api-prefix", env="LLAMA_ARG_API_PREFIX", metavar="PATH"), AfterValidator(_prefix)
    ] = ""
    """Path in front of every endpoint, e.g. /llm."""
    ssl_key_file: Annotated[
        FilePath | None,
        option("--ssl-key-file", env="LLAMA_ARG_SSL_KEY_FILE", metavar="FILE", is_path=True),
    ] = None
    """PEM file with the TLS private key; needs ssl_cert_file."""
    ssl_cert_file: Annotated[
        FilePath | None,
        option("--ssl-cert-file", env="LLAMA_ARG_SSL_CERT_FILE", metavar="FILE", is_path=True),
    ] = None
    """PEM file with the TLS certificate; needs ssl_key_file."""
    timeout_s: Annotated[Float, option("-to", "--timeout", env="LLAMA_ARG_TIMEOUT", metavar="N"), Field(gt=0)] = 3600.0
    """Seconds within which a request's body must have arrived in all; a reply may take as long as it takes."""
    idle_s: Annotated[Float, option(), Field(gt=0)] = 60.0
    """Longest silence in seconds of a client that sends a body, or that should be reading a stream."""
    max_body_bytes: Annotated[Int, option(), Field(ge=1024)] = 64 * MIB
    """Largest request body in bytes."""
    max_bodies_bytes: Annotated[Int, option(), Field(ge=0)] = 0
    """Most bytes of the bodies of all running requests together; the next get a 503. 0 = four times one's limit."""
    max_connections: Annotated[Int, option(), Field(ge=0)] = 0
    """Connections at once. The next one takes the place of one without a request; where there is none, its requests get
    a 503 with Retry-After, but those for health. 0 = what the process may open, less 256, at most 8192."""
    max_preparing: Annotated[Int, option(), Field(ge=0)] = 1024
    """Requests that may be on their way to a queue at once: waiting for their model, or to be rendered and tokenized;
    the next one gets 429 with Retry-After. 0 = any."""
    sse_ping_interval: Annotated[
        Int, option("--sse-ping-interval", env="LLAMA_ARG_SSE_PING_INTERVAL"), Field(ge=-1)
    ] = 30
    """Seconds between the comments that keep a silent stream open; -1 or 0 = none."""
    threads_http: Annotated[Int, option("--threads-http", env="LLAMA_ARG_THREADS_HTTP"), Field(ge=-1)] = -1
    """Threads that render templates and tokenize; -1 or 0 = automatic."""
    shutdown_delay_s: Annotated[Float, option(), Field(ge=0)] = 0.0
    """Seconds after SIGTERM in which requests are still taken while /readyz says 503: until load balancers notice."""
    watchdog_s: Annotated[Float, option(), Field(ge=0)] = 600.0
    """Longest seconds of one step: then the model counts as failed, its requests end, all stacks are logged, and /livez
    says 503, since only a restart ends the step; of a model with isolation: process its process is killed and started
    again instead. 0 = any."""
    drain_s: Annotated[Float, option(), Field(ge=0)] = 30.0
    """Seconds that running requests may take to finish when the server stops."""

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


def _no_empty_key(keys: tuple[str, ...]) -> tuple[str, ...]:
    if not all(key.strip() for key in keys):
        raise ValueError("holds an empty key; give a key, or leave the option out to serve everybody")
    return keys


class AccessSettings(SettingsModel):
    """Who may use what."""

    group: ClassVar[str] = "Access"

    api_keys: Annotated[
        TextList,
        AfterValidator(_no_empty_key),
        option("--api-key", env="LLAMA_API_KEY", metavar="KEY,...", text=_key_list, repeat=True, secret=True),
    ] = ()
    """Keys, separated by commas, one of which a request must carry; none = open to all."""
    api_key_file: Annotated[
        FilePath | None,
        option("--api-key-file", env="LLAMA_ARG_API_KEY_FILE", metavar="FILE", is_path=True),
    ] = None
    """File with further keys, one on each line; lines that start with # are comments."""
    keys_file: Annotated[FilePath | None, option(metavar="FILE", is_path=True)] = None
    """YAML file with keys that may do some things, to some amount, for some time; `llamapool keys add FILE NAME` makes
    one. It is read again when it changes."""
    cache_scope: Annotated[Literal["auto", "server", "key", "request"], option()] = "auto"
    """Whose requests may use what one request had computed: everybody's, those with its key, or nobody's; auto = by key
    where there are several, else everybody's. A request's cache_salt bounds it further."""
    closed: Annotated[Bool, option()] = False
    """For a server that others can reach: it does not start on an address of the network without a key; without one,
    pages of other sites are refused everywhere, not only where they would change the server; and of cors_origins only
    origins that are named count."""
    allowed_hosts: Annotated[TextList, option(metavar="A,B", text=split_list)] = ()
    """Names under which clients without a key reach the server on loopback addresses, through a proxy for instance,
    beside addresses, names without a dot, localhost, .local, .internal and this machine's; *.example.com = all below
    it, * = any."""
    metrics: Annotated[Bool, option("--metrics", env="LLAMA_ARG_ENDPOINT_METRICS")] = False
    """Serve GET /metrics for Prometheus."""
    metrics_open: Annotated[Bool, option()] = False
    """Whoever reaches the server may read GET /metrics, also where there are keys: for what scrapes without one, such
    as the llm-d router's endpoint picker. It names models, keys and adapters, and no prompts."""
    slots: Annotated[Bool, option("--slots", env="LLAMA_ARG_ENDPOINT_SLOTS", off=("--no-slots",))] = True
    """Serve GET /slots."""
    slot_save_path: Annotated[FilePath | None, option("--slot-save-path", metavar="FOLDER", is_path=True)] = None
    """Folder for POST /slots/{id}?action=save|restore|erase, which answers only with it; none = off."""
    slot_save_quota: Annotated[Int, option(metavar="MIB"), Field(ge=0)] = 0
    """Most MiB of files there, of each key where there are several; 0 = any."""
    slot_save_secret_file: Annotated[FilePath | None, option(metavar="FILE", is_path=True)] = None
    """File with a secret that signs saved slots, for a folder that others write to; what it did not sign is not
    restored, llama-server's own files neither."""
    props: Annotated[Bool, option("--props", env="LLAMA_ARG_ENDPOINT_PROPS")] = False
    """Serve POST /props; as in llama-server, there is no property yet that it can change."""
    cors_origins: Annotated[str, option("--cors-origins", env="LLAMA_ARG_CORS_ORIGINS", metavar="A,B")] = "*"
    """Origins that browsers may call from; localhost = only pages served from this machine."""
    cors_methods: Annotated[str, option("--cors-methods", env="LLAMA_ARG_CORS_METHODS", metavar="A,B")] = (
        "GET, POST, DELETE, OPTIONS"
    )
    """Methods that browsers may use."""
    cors_headers: Annotated[str, option("--cors-headers", env="LLAMA_ARG_CORS_HEADERS", metavar="A,B")] = "*"
    """Headers that browsers may send."""
    cors_credentials: Annotated[
        Bool,
        option("--cors-credentials", env="LLAMA_ARG_CORS_CREDENTIALS", off=("--no-cors-credentials",)),
    ] = True
    """Browsers may send credentials."""


def _amounts(value: str) -> str:
    read_budget(value)
    return value


def _endpoints(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"'{value}' should be HOST:PORT")
    return values


class PoolSettings(SettingsModel):
    """Several models."""

    group: ClassVar[str] = "Model pool"

    models_dir: Annotated[
        FilePath | None, option("--models-dir", env="LLAMA_ARG_MODELS_DIR", metavar="FOLDER", is_path=True)
    ] = None
    """Folder whose GGUF files, split models and multimodal folders are served, each under its name."""
    models_preset: Annotated[
        FilePath | None,
        option("--models-preset", env="LLAMA_ARG_MODELS_PRESET", metavar="FILE", is_path=True),
    ] = None
    """llama-server's INI file with a section for each model."""
    rpc: Annotated[
        TextList,
        option("--rpc", env="LLAMA_ARG_RPC", metavar="HOST:PORT,...", text=split_list),
        AfterValidator(_endpoints),
    ] = ()
    """Machines with llama.cpp's rpc-server, whose devices count as GPUs here. Needs a library with its RPC backend;
    which ends the whole process when such a machine is gone."""
    watch_config: Annotated[Bool, option()] = False
    """Read the YAML file and the preset again when they change, as SIGHUP does: models that are gone or configured
    otherwise are unloaded, the others don't notice."""
    models_max: Annotated[Int, option("--models-max", env="LLAMA_ARG_MODELS_MAX"), Field(ge=0)] = 4
    """Most models loaded at once; the least recently used idle one makes room; 0 = no limit."""
    memory: Annotated[str, option(metavar="AMOUNT"), AfterValidator(_amounts)] = ""
    """Memory that models may take together: 80% or 12GiB, with commas of each device (CPU=12GiB,CUDA0=80%); empty =
    what is free when the first is loaded, but for 1 GiB or a quarter. Idle models make room: first those whose bytes
    spare the fewest seconds of loading, by how often and how lately they were used."""
    caches_ram: Annotated[Int, option(metavar="MIB"), Field(ge=-2)] = -2
    """MiB of that for what all models cache in RAM: prompts that lost their slot (cache_ram), and embeddings of images
    and audio (media_cache, a quarter of it at most), as far as models leave it; -1 = all that they leave, -2 =
    automatic: 8192, at most a quarter of the memory."""
    models_wait_s: Annotated[Float, option(), Field(ge=0)] = 300.0
    """Longest seconds that requests wait for room for their model; then they get 503 with Retry-After. 0 = any."""
    models_autoload: Annotated[
        Bool, option("--models-autoload", env="LLAMA_ARG_MODELS_AUTOLOAD", off=("--no-models-autoload",))
    ] = True
    """A request loads its model; without, only POST /models/load does."""


class LogSettings(SettingsModel):
    """Logging, to standard error unless a file is named."""

    group: ClassVar[str] = "Logging"

    verbosity: Annotated[
        Int,
        option(
            "-lv",
            "--verbosity",
            "--log-verbosity",
            env="LLAMA_ARG_LOG_VERBOSITY",
            constants=dict.fromkeys(("-v", "--verbose", "--log-verbose"), VERBOSITY_ALL),
        ),
        Field(ge=0),
    ] = 3
    """0 and 1 = errors, 2 = warnings, 3 = information, 4 and more = debugging; -v = everything. From 10 on
    replies of chats and completions carry `__verbose`, the native reply, as with `"verbose": true` in a request."""
    log_disable: Annotated[Bool, option("--log-disable")] = False
    """No log at all."""
    log_jsonl: Annotated[Bool, option("--log-jsonl", env="LLAMA_ARG_LOG_JSONL", off=("--no-log-jsonl",))] = False
    """A JSON object on each line: type, time (unix seconds), level, origin, msg, and of what is about a request its id
    and what it took."""
    log_file: Annotated[
        FilePath | None, option("--log-file", env="LLAMA_ARG_LOG_FILE", metavar="FILE", is_path=True)
    ] = None
    """File that the log goes to, too. It may be moved away or cut meanwhile (logrotate, either way)."""
    log_colors: Annotated[Switch, option("--log-colors", env="LLAMA_ARG_LOG_COLORS")] = "auto"
    """Colours; auto = when standard error is a terminal."""
    log_prefix: Annotated[Bool, option("--log-prefix", env="LLAMA_ARG_LOG_PREFIX", off=("--no-log-prefix",))] = True
    """Level and origin in front of each line."""
    log_timestamps: Annotated[
        Bool, option("--log-timestamps", env="LLAMA_ARG_LOG_TIMESTAMPS", off=("--no-log-timestamps",))
    ] = True
    """Time in front of each line."""


class ServerSettings(
    LogSettings,
    TelemetrySettings,
    HubSettings,
    PoolSettings,
    FetchSettings,
    PageSettings,
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
