"""How many connections there may be at once: each takes a descriptor, which models and their files need, too."""

from server.errors import Unavailable

REFUSED = "llamapool.refused"
"""A key in the ASGI scope of a request that came over a connection too many."""
RETRY_AFTER_S = 1
MOST = 8192
"""Connections, where no limit is set: some hundred megabytes if all of them send heads."""
_FOR_OTHERS = 256  # descriptors: of models, files, processes, logs
_LEAST_HANDSHAKES = 64
_PER_HANDSHAKE = 4  # connections


class TooManyConnections(Unavailable):
    """All places for connections are taken by requests (HTTP 503)."""

    def __init__(self) -> None:
        super().__init__(f"there are too many connections, retry in {RETRY_AFTER_S} s")
        self.retry_after_s = RETRY_AFTER_S


def most_connections(wanted: int, *, tls: bool = False) -> int:
    """Return the connection limit of this process; `wanted` 0 = as many as file descriptors allow. Raises the
    descriptor limit, with `tls` also for handshakes.
    """
    places = wanted or MOST
    n_descriptors = _descriptors(places + (most_handshakes(places) if tls else 0) + _FOR_OTHERS)
    left = max(n_descriptors - _FOR_OTHERS, n_descriptors // 2)
    return min(places, left * _PER_HANDSHAKE // (_PER_HANDSHAKE + 1) if tls else left)


def most_handshakes(most: int) -> int:
    """Return how many TLS handshakes are allowed besides `most` connections."""
    return max(most // _PER_HANDSHAKE, _LEAST_HANDSHAKES)


def _descriptors(wanted: int) -> int:
    """The most descriptors of this process, raised to `wanted` where the system lets it."""
    try:
        import resource
    except ImportError:  # Windows, where each socket is a handle and there is no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(soft, raised)
