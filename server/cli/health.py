"""``llamapool health``: ask a running server whether it is healthy, for a container's health check.

A check runs every few seconds, so this module imports neither the settings nor the web framework. It takes a tenth of a
second instead of one. The server writes its URLs to ``server.address_file``, so the check needs no flags for the port,
API prefix and scheme.
"""

import http.client
import os
import re
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

VARIABLE = "LLAMAPOOL_SERVER__ADDRESS_FILE"
USAGE = f"""llamapool health [FILE]

Ask the server on this machine for GET /health. FILE is its server.address_file; by default the file that
{VARIABLE} names. Exit status: 0 = healthy, 1 = not, 2 = no FILE was given."""
TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # addresses to listen on, not to connect to
_UNIX = "+unix"


def main(argv: Sequence[str]) -> int:
    """Print the server's reply and return the exit status."""
    if {"-h", "--help"}.intersection(argv):
        print(USAGE)
        return 0
    file = argv[0] if argv else os.environ.get(VARIABLE, "")
    if len(argv) > 1 or not file:
        print(f"llamapool health: name the server's address file, or set {VARIABLE}", file=sys.stderr)
        return 2
    try:
        status, text = get_health(Path(file).read_text(encoding="utf-8").splitlines()[0])
    except IndexError:
        status, text = 0, f"{file} contains no address"
    except (OSError, ValueError, http.client.HTTPException) as error:
        status, text = 0, f"no answer from the server of {file}: {error}"
    print(text if status in (0, 200) else f"{status} {text}")
    return 0 if status == 200 else 1


def get_health(url: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Return the status and body of GET /health at a URL of the server. Raises OSError and HTTPException."""
    parts = urlsplit(url)
    tls = parts.scheme.removesuffix(_UNIX) == "https"
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    path, prefix = "", parts.path
    if parts.scheme.endswith(_UNIX):
        ends = [found.end() for found in re.finditer(r"\.sock(?=/|$)", parts.path)]  # folders and prefixes may have one
        path = next((parts.path[:end] for end in ends if Path(parts.path[:end]).is_socket()), parts.path)
        prefix = parts.path[len(path) :]
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        host = parts.hostname or ""
        plain = socket.create_connection((_ANY.get(host, host), parts.port), timeout_s)
    with plain:
        if path:
            plain.settimeout(timeout_s)
            plain.connect(path)
        connection.sock = _encrypted(plain) if tls else plain
        try:
            connection.request("GET", f"{prefix}/health")
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()


def _encrypted(plain: socket.socket) -> ssl.SSLSocket:
    """Wrap a socket in TLS without verification: the certificate is not for loopback, and no secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)
