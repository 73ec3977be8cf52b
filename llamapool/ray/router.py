"""The request router of a front. Serve calls it for the order in which to try replicas."""

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from llamapool.ray.placement import Aim, Candidate, Placement


class PrefixRouter(RequestRouter):
    """`Placement` with Serve's replicas. Each front has its own, which knows only the requests of this front."""

    def initialize_state(self, **_: Any) -> None:
        """Create the state. Called by Serve."""
        self._placement = Placement()
        self._running: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas, cheapest first. A full replica is skipped."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # after all were tried
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        order = self._placement.order(aim_of(pending_request), [self._candidate(one) for one in candidate_replicas])
        return [[by_id[id_]] for id_ in order]

    def _candidate(self, replica: RunningReplica) -> Candidate:
        stats = replica.routing_stats or {}
        queued = self.replica_queue_len_cache.get(replica.replica_id) or 0  # includes those of other fronts
        return Candidate(
            id=replica.replica_id.unique_id,
            n_requests=max(self._running[replica.replica_id], queued),
            n_slots=max(stats.get("n_slots", 1), 1),
            models=frozenset(stats.get("models", ())),
        )

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record a request that was sent to a replica. Called by Serve."""
        self._running[replica_id] += 1
        self._placement.sent(aim_of(pending_request), replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, *_: Any, **__: Any) -> None:
        """Record the end of a request, also a failed one. Called by Serve."""
        self._running[replica_id] -= 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Replace the replicas and their stats. Called by Serve when they change."""
        super().update_replicas(replicas)
        self._placement.keep([replica.replica_id.unique_id for replica in replicas])
        self._running = Counter({one.replica_id: self._running[one.replica_id] for one in replicas})


def aim_of(pending: PendingRequest | None) -> Aim:
    """Return the target that the front has attached to a request."""
    return next((one for one in (pending.args if pending else ()) if isinstance(one, Aim)), Aim())
