"""Choose the CORS headers of a reply (llama.cpp tools/server/server-http.cpp, pre-routing handler)."""

from server.transport.access.hosts import host_of
from server.transport.options import CorsOptions

ReplyHeaders = list[tuple[bytes, bytes]]
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class CorsPolicy:
    """The policy of ``--cors-origins``: "*", "localhost", or origins separated by commas."""

    def __init__(self, options: CorsOptions) -> None:
        self._origins = options.listed
        self._echo_any = options.origins.strip() == "*" and options.credentials
        self._any = "*" in (part.strip() for part in options.origins.split(","))
        self._only_local = options.origins.strip() == "localhost"
        self._preflight: ReplyHeaders = [
            (b"access-control-allow-credentials", b"true" if options.credentials else b"false"),
            (b"access-control-allow-methods", options.methods.encode("latin-1", "replace")),
            (b"access-control-allow-headers", options.headers.encode("latin-1", "replace")),
        ]
        self._credentials = self._preflight[:1] if options.credentials else []

    def headers(self, origin: bytes | None) -> ReplyHeaders:
        """Return the headers for a request with that Origin; none without an Origin, or for one that is not allowed.

        With credentials and "*" the origin is echoed, since browsers refuse "*" together with credentials.
        """
        if not origin or not self.allows(origin):
            return []
        if self._any and not self._echo_any:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), *self._credentials]

    def preflight(self, origin: bytes | None) -> ReplyHeaders:
        """Return the headers of the reply to OPTIONS. It needs no key, since browsers send none."""
        allowed = [pair for pair in self.headers(origin) if pair not in self._credentials]
        return [*allowed, *self._preflight]

    def allows(self, origin: bytes) -> bool:
        """Return whether pages of that origin may read replies."""
        if self._any:
            return True
        text = origin.decode("latin-1")
        if self._only_local:
            return host_of(text) in _LOCAL
        return text in self._origins
