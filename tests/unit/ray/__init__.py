"""The benchmark's own parts, over canned bytes and a scripted server."""
