"""Streamed replies: `sse`, over HTTP or an `event_socket`; `disconnect` detects a client's disconnect, `replay` keeps
resumable streams.
"""
