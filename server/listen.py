"""Open the sockets that the server listens on, before it loads anything, so that a mistake shows at once."""

import errno
import logging
import math
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from server.errors import ConfigError
from server.options.server import ListenSettings, ServerSettings
from server.transport.cors import is_local

logger = logging.getLogger(__name__)

UNREAD_S = 60.0
"""Seconds after which the kernel drops a connection whose client acknowledges or reads nothing of a reply."""
UNIX_SUFFIX = ".sock"  # as llama-server's --host


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket. ``file`` is the path of a Unix socket, which remains after the socket is closed."""

    socket: socket.socket
    url: str
    file: Path | None = None

    def close(self) -> None:
        """Close the socket and remove its file. Harmless if the server has closed it already."""
        self.socket.close()
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def open_listeners(settings: ListenSettings) -> list[Listener]:
    """Open a socket for each host, and one for the administration port.

    Raises ConfigError that names the address that cannot be used.
    """
    n_tcp = sum(not host.endswith(UNIX_SUFFIX) for host in settings.host)
    places = [("host", host, settings.port, n_tcp == 1) for host in settings.host]
    places += [("admin_host", settings.admin_host, settings.admin_port, True)] * bool(settings.admin_port)
    if settings.port == 0 and n_tcp > 1:
        raise ConfigError("server.port 0 needs a single TCP address in server.host; name a port")
    scheme = "http" if settings.ssl_key_file is None else "https"
    opened: list[Listener] = []
    try:
        for option, host, port, alone in places:
            if host.endswith(UNIX_SUFFIX):
                bound, file = _unix_socket(Path(host)), Path(host).absolute()
                url = f"{scheme}+unix://{file}"
            else:
                bound, file = _tcp_socket(option, host, port, alone=alone, shared=settings.reuse_port), None
                url = _url(scheme, bound)
            opened.append(Listener(bound, url + settings.api_prefix, file))
    except ConfigError:
        for listener in opened:
            listener.close()
        raise
    return opened


@contextmanager
def published(file: Path | None, listeners: Sequence[Listener]) -> Iterator[None]:
    """Write each listener's URL to a line of `file` for ``llamapool health``, and remove the file at the end.

    Logs a warning if the file cannot be written, since the server itself does not need it.
    """
    if file is None:
        yield
        return
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        written.write_text("".join(f"{listener.url}\n" for listener in listeners), encoding="utf-8")
        written.replace(file)
    except OSError as error:
        logger.warning(
            "server.address_file: cannot write %s: %s; llamapool health fails until it names a writable place",
            file,
            error.strerror,
        )
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def check_reach(settings: ServerSettings) -> list[str]:
    """Return a warning if clients of other machines may use the server without a key.

    Raises ConfigError if ``closed`` forbids that.
    """
    hosts = (*settings.host, settings.admin_host) if settings.admin_port else settings.host
    reached = [host for host in hosts if not host.endswith(UNIX_SUFFIX) and not is_local(host)]
    if not reached or settings.keys_file is not None or settings.all_api_keys():
        return []
    if settings.closed:
        raise ConfigError(
            f"server.closed: others can reach {reached[0]}, and there is no key; give LLAMA_API_KEY, "
            "server.api_key_file or server.keys_file (llamapool keys), or --no-closed to serve everybody"
        )
    return [
        f"ANYONE WHO REACHES {reached[0]} PORT {settings.port} MAY USE THIS SERVER: it has no API key. Set --api-key, "
        "--api-key-file or --keys-file, or listen on 127.0.0.1; with --closed the server doesn't start like this"
    ]


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _tcp_socket(option: str, host: str, port: int, *, alone: bool, shared: bool) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, ValueError) as error:  # ValueError: no host name has this form
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"server.{option}: '{host}' is not an address of this machine: {reason}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            if not hasattr(socket, "SO_REUSEPORT"):
                raise ConfigError("server.reuse_port: this system has no ports that processes share")
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not alone)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(UNREAD_S * 1000))
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {_reason(error)}") from None
    listener.setblocking(False)
    return listener


def _unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {_reason(error)}") from None
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the file of a Unix socket whose server has ended. A socket that answers stays, and binding to it fails."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "it is in use; stop the other server or choose another --port"
    return f"{error.strerror or error}; choose another --host or --port"
