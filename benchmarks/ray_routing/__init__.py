"""Routers of replicas on a Ray cluster compared: `python -m benchmarks.ray_routing`."""
