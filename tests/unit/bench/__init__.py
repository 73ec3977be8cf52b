"""Unit tests of `server.bench`."""
