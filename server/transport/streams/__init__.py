"""Replies that are written while their client is there: `sse`, over HTTP or an `event_socket`; `disconnect` tells when
it has gone, `replay` keeps what it may come back for.
"""
