"""TLS handshakes, which an event loop has before it tells anybody of a connection: at most so many at once.

Each holds a descriptor and some kilobytes until it is done or its time is over. A client that begins many and completes
none delays new clients by that time at most, and nobody who is connected. The loop has the transport, so that the
next one can't take the idlest one's place, as it does among connections (`uvicorn_protocols`): it is closed.
"""

import ssl
from time import monotonic
from weakref import WeakKeyDictionary

HANDSHAKE_S = 10.0  # what `python -m server` gives a handshake
FAREWELL_S = 5.0  # for a client's side of a TLS connection's end, and for what it has still to read


class TooManyHandshakes(ssl.SSLError):
    """All places for handshakes are taken; the loop closes the connection."""


def count_handshakes(context: ssl.SSLContext, most: int, limit_s: float = HANDSHAKE_S) -> None:
    """Let `context` have at most `most` handshakes under way; for a loop's thread. `limit_s`: when the loop ends one.

    asyncio and uvloop alike ask it for the object that makes one (``sslobject_class``), and drop that when the client
    leaves or its time is over: asyncio as garbage, in a circle with the error that ended it, which may lie for long. So
    none counts after `limit_s`.
    """
    under_way: WeakKeyDictionary[ssl.SSLObject, float] = WeakKeyDictionary()  # since when

    class Counted(ssl.SSLObject):
        def do_handshake(self) -> None:
            """Go on with it; raises `TooManyHandshakes` where it would be one too many."""
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
