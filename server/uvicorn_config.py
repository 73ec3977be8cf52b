"""Configure the uvicorn that runs the application: ``python -m server``, ``uvicorn server.app:app`` or a program's own.

The application does this at the start of its lifespan. uvicorn opens its listening sockets after that, and reads its
configuration again for each new connection, so what is set here holds for every connection.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import signal
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from server.errors import ConfigError
from server.options.server import ListenSettings, ServerSettings
from server.transport.limits import SPARE_CONNECTIONS, connection_limit
from server.transport.server import HttpProtocol, serving

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""Seconds that uvicorn gives connections to close after the application has drained."""
TICK_S = 1.0
HEADERS = ((b"server", b"llamapool"),)
"""Headers of every reply, also of uvicorn's own 400 and 503 and of a WebSocket's 101. ``--no-server-header`` of uvicorn
leaves them out.
"""
_UVICORN = (b"server", b"uvicorn")
_DEFAULTS = {name: each.default for name, each in inspect.signature(uvicorn.Config).parameters.items()}
_NEED_UVICORN = ("keep_alive_s", "max_connections", "ssl_cert_file")


class AdminServer(uvicorn.Server):
    """A uvicorn whose sockets include the administration port. It logs its `addresses`; uvicorn does not if it is given
    sockets.
    """

    def __init__(self, config: uvicorn.Config, addresses: list[str]) -> None:
        super().__init__(config)
        self._addresses = addresses
        self._exiting = asyncio.Event()

    async def serve_until_signal(self, sockets: list[socket.socket]) -> None:
        """Serve; return on SIGINT and SIGTERM, which uvicorn would raise once more after a clean end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        await self.serve(sockets=sockets)

    def _stop(self, *_: object) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal on the running loop."""
        super().handle_exit(sig, frame)
        self._exiting.set()

    async def main_loop(self) -> None:
        """Tick every second, for the date header, and at the exit. uvicorn would wake up ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exiting.wait(), TICK_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await super().startup(sockets)
        for address in self._addresses:
            logger.info("listening on %s", address)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files that TLS is served with. ``source`` names the options that gave them."""

    source: str
    cert_file: Path
    key_file: Path | None
    password: str = ""
    ca_file: Path | None = None

    @property
    def files(self) -> list[Path]:
        """The files to watch for a new certificate."""
        return [file for file in (self.cert_file, self.key_file, self.ca_file) if file is not None]

    def read(self) -> ssl.SSLContext:
        """Read the files once. Raises ConfigError when they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=self.password)
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, self.files))
            raise ConfigError(f"{self.source}: {files}: {error}; check these files") from None
        return context


def certificate_of(server: ListenSettings) -> Certificate | None:
    """Return the certificate of uvicorn's own flags, otherwise of `server`; None = no TLS."""
    running = serving()
    if running is not None and running.config.ssl_certfile:
        config = running.config
        key, ca = (Path(file) if file else None for file in (config.ssl_keyfile, config.ssl_ca_certs))
        source = "--ssl-certfile, --ssl-keyfile"
        return Certificate(source, Path(config.ssl_certfile or ""), key, config.ssl_keyfile_password or "", ca)
    if server.ssl_cert_file is None:
        return None
    return Certificate("server.ssl_cert_file, server.ssl_key_file", server.ssl_cert_file, server.ssl_key_file)


def check_certificate(server: ListenSettings) -> None:
    """Raise ConfigError when the certificate and its key cannot be used."""
    certificate = certificate_of(server)
    if certificate is not None:
        certificate.read()


def use_certificate(fresh: ssl.SSLContext) -> None:
    """Serve new connections with the certificate of `fresh`; connections that are open keep theirs.

    uvicorn's sockets keep the context that they were opened with. Loading files into that one would serve a
    certificate without its key if the second file is not the first one's.
    """
    running = serving()
    if running is None or running.config.ssl is None:
        return

    def select(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = fresh

    running.config.ssl.sni_callback = select  # OpenSSL calls it for clients that send no name, too


def configure(server: ServerSettings) -> None:
    """Give the uvicorn that runs this application the limits of `server`. uvicorn's own flags win.

    Logs what has no effect. Raises ConfigError when the certificate of `server` cannot be used.
    """
    running = serving()
    if running is None:
        without = ", ".join(f"server.{name}" for name in _NEED_UVICORN if name in server.model_fields_set)
        if without:
            logger.warning("%s: no effect, as this server is not uvicorn; set its own options", without)
        return
    config = running.config
    opens_admin_port = isinstance(running, AdminServer) or config.port == server.admin_port
    if server.admin_port and not opens_admin_port:
        logger.warning(
            "server.admin_port: this uvicorn does not listen on port %d, so administration (GET /metrics, changes of "
            "models and so on) is answered nowhere; unset the option, or start python -m server",
            server.admin_port,
        )
    certificate = certificate_of(server)
    if config.ssl is None and certificate is not None:
        config.ssl = certificate.read()
    if config.http in ("auto", "httptools"):
        config.http_protocol_class = HttpProtocol
    limits: dict[str, Any] = {
        "limit_concurrency": connection_limit(server.max_connections) + SPARE_CONNECTIONS,
        "timeout_keep_alive": server.keep_alive_s,
        "timeout_graceful_shutdown": math.ceil(server.drain_s + GRACE_S),
        "ws_max_size": server.max_body_bytes,
        "ws_per_message_deflate": False,  # a small message could become a large one
    }
    for name, value in limits.items():
        if getattr(config, name) == _DEFAULTS[name]:
            setattr(config, name, value)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)
    config.encoded_headers = [
        header for uvicorns in config.encoded_headers for header in (HEADERS if uvicorns == _UVICORN else (uvicorns,))
    ]


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for the error that uvicorn logs for each WebSocket that was refused with an HTTP status.

    The same holds for tracebacks of requests that it cancels at shutdown, whose number it logs.
    """
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and record.msg != "ASGI callable returned without completing handshake."
