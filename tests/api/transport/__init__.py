"""Tests of the transport: keys, cross-origin checks, bodies, connections, errors."""
