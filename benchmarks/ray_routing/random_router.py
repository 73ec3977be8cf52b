"""A random router for `benchmarks.ray_routing`."""

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class RandomRouter(RequestRouter):
    """Orders replicas randomly. Ray Serve calls it for each request."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return all replicas in random order."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[one] for one in random.sample(candidate_replicas, len(candidate_replicas))]
