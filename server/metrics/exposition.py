"""One application's metrics: its own registry, nothing global."""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.exposition import choose_encoder

from server.metrics.collector import EngineCollector
from server.metrics.ledger import Ledger
from server.pool.state import ModelState


class Metrics:
    """What ``GET /metrics`` shows. Used on the event loop."""

    def __init__(self) -> None:
        self.started_at = time.time()  # unix seconds
        self._ledger = Ledger()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(self._ledger.totals))
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "llamapool_http_requests",
            "HTTP requests answered",
            ["path_template", "method", "status"],
            registry=self._registry,
        )

    def observe(self, states: Iterable[ModelState]) -> None:
        """Follow the pool: call it on each change of a model's status."""
        self._ledger.observe(states)

    def count_request(self, path_template: str, method: str, status: int) -> None:
        """Count one answered request. `path_template` comes from the routes, never from the client."""
        self._requests.labels(path_template, method, str(status)).inc()

    def render(self, accept: str, states: Iterable[ModelState]) -> tuple[bytes, str]:
        """The text and its content type: Prometheus' plain text, or OpenMetrics where `accept` asks for it."""
        self._ledger.observe(states)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
