"""The native side alone, against the library itself: no server."""
