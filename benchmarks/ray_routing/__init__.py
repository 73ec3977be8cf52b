"""Replicas on a Ray cluster: `python -m benchmarks.ray_routing`, and the router that it compares with."""
