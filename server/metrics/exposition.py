"""One application's metrics: its own registry, nothing global."""

import re
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.exposition import choose_encoder

from server.metrics.collector import MAX_TOKENS_NAMES, EngineCollector
from server.metrics.ledger import Ledger
from server.metrics.windows import Windows
from server.pool.state import ModelState
from server.telemetry.record import Record

_TYPES_OF_MAX = tuple(
    (f"# TYPE {name} gauge\n".encode(), f"# TYPE {name} counter\n".encode()) for name in MAX_TOKENS_NAMES
)
"""llama-server calls the peak a counter; prometheus_client would name a counter ``..._total``, as OpenMetrics must."""

_WHOLE = re.compile(rb"^([^#\n].*)\.0$", re.MULTILINE)
"""llama-server writes a whole number without the decimal point; who reads a counter with ``int()`` relies on it."""


class Metrics:
    """What ``GET /metrics`` shows. Used on the event loop."""

    def __init__(self) -> None:
        self.started_at = time.time()  # unix seconds
        self._ledger = Ledger()
        self._windows = Windows()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(self._ledger.totals, self._windows))
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

    def ended(self, record: Record) -> None:
        """Count a request."""
        self._requests.labels(record.route, record.method, str(record.status)).inc()

    def render(self, accept: str, states: Iterable[ModelState], model: str = "") -> tuple[bytes, str]:
        """The text and its content type: Prometheus' plain text, or OpenMetrics where `accept` asks for it.

        With the id of a `model` only its own metrics, without a label: llama-server's text to the letter.
        """
        self._ledger.observe(states)
        encode, content_type = choose_encoder(accept)
        text = encode(self._of_one(model) if model else self._registry)
        if content_type.startswith("text/plain"):
            for gauge, counter in _TYPES_OF_MAX:
                text = text.replace(gauge, counter)
            text = _WHOLE.sub(rb"\1", text)
        return text, content_type

    def _of_one(self, model: str) -> CollectorRegistry:
        registry = CollectorRegistry(auto_describe=False)
        totals = {model: self._ledger.totals()[model]}
        registry.register(EngineCollector(lambda: totals, self._windows, labelled=False))
        return registry
