"""Limits concurrent TLS handshakes, which the event loop performs before it reports a connection. Each holds a
descriptor and some kilobytes until it completes or times out. A client that starts many and completes none delays
new clients by at most that time, and no connected one.
"""

import ssl
from time import monotonic
from weakref import WeakKeyDictionary

HANDSHAKE_S = 10.0  # what `python -m server` gives a handshake
FAREWELL_S = 5.0  # for a client's side of a TLS connection's end, and for what it has still to read


class TooManyHandshakes(ssl.SSLError):
    """All places for handshakes are taken; the loop closes the connection."""


def count_handshakes(context: ssl.SSLContext, most: int, limit_s: float = HANDSHAKE_S) -> None:
    """Limit `context` to `most` concurrent handshakes; for the event loop's thread. `limit_s`: when the loop ends one.

    asyncio and uvloop request an object per handshake (``sslobject_class``) and drop it when the client leaves or it
    times out: asyncio leaves it to the garbage collector, possibly late, so none counts after `limit_s`.
    """
    under_way: WeakKeyDictionary[ssl.SSLObject, float] = WeakKeyDictionary()  # since when

    class Counted(ssl.SSLObject):
        def do_handshake(self) -> None:
            """Continue the handshake. Raises `TooManyHandshakes` above the limit."""
            if self not in under_way:
                now = monotonic()
                if sum(now - since < limit_s for since in under_way.values()) >= most:
                    raise TooManyHandshakes(f"{most} TLS handshakes are under way")
                under_way[self] = now
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except BaseException:
                under_way.pop(self, None)
                raise
            under_way.pop(self, None)

    context.sslobject_class = Counted
