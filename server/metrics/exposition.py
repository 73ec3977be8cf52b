"""The metrics of one application, in a registry of its own."""

import asyncio
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from server import __version__
from server.metrics.collector import MAX_TOKENS_NAMES, EngineCollector, Ledger, ServerCollector, Windows
from server.pool.events import StatusChanged
from server.pool.state import ModelState, Status
from server.telemetry.record import ModelUse, Record

disable_created_metrics()  # type: ignore[no-untyped-call]  # ``_created`` series, which Prometheus ignores

_TYPES_OF_MAX = tuple(
    (f"# TYPE {name} gauge\n".encode(), f"# TYPE {name} counter\n".encode()) for name in MAX_TOKENS_NAMES
)
"""llama-server exports the peak as a counter. prometheus_client would add ``_total`` to its name, as in OpenMetrics."""

_WHOLE = re.compile(rb"^([^#\n].*)\.0$", re.MULTILINE)
"""llama-server writes integers without a decimal point; clients that parse a counter with ``int()`` depend on it."""

_LOAD_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_COUNTERS = (  # name, labels, description
    (
        *("http_requests", "path_template method status"),
        "HTTP requests; status 499: the client left before the reply began",
    ),
    (
        *("request_errors", "reason"),
        "Refused or failed requests by `reason`, the log's `outcome`, such as queue_full, rate_limited_tokens_per_day",
    ),
    ("key_requests", "key status", "HTTP requests by the name of the key and `status`"),
    (
        *("key_tokens", "key kind"),
        "Tokens by the name of the key and `kind`: prompt, cached (part of prompt), predicted",
    ),
    (
        *("choices", "model reason"),
        "Ended choices by `reason`: eos, word (a stop string), limit, cancelled, failed",
    ),
    ("model_loads", "model result", "Loads by `result`: ready, failed, cancelled"),
)
LAG_INTERVAL_S = 0.25
"""Seconds between measurements of the event loop's lag."""


class Metrics:
    """Renders ``GET /metrics``. Use on the event loop. `states`: the pool's model states."""

    def __init__(
        self,
        states: Callable[[], Sequence[ModelState]] = lambda: (),
        spent: Callable[[], Mapping[str, tuple[int, int]]] = dict,
        gpus: Collector | None = None,
    ) -> None:
        """`spent` returns the tokens of each key of today and of this month (UTC). `gpus`: see `metrics.gpu`."""
        self.started_at = time.time()  # unix seconds
        self._states, self._spent = states, spent
        self._load_started: dict[str, float] = {}
        self.ledger = Ledger()
        self._windows = Windows()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(self.ledger.totals, self._windows))
        self._registry.register(ServerCollector(states))
        if gpus is not None:
            self._registry.register(gpus)
        ProcessCollector(registry=self._registry)
        self._counters = {
            name: Counter(f"llamapool_{name}", text, labels.split(), registry=self._registry)
            for name, labels, text in _COUNTERS
        }
        self._budget_of_key = Gauge(
            "llamapool_key_budget_used_tokens",
            "Tokens that count against the budgets of a key, by `period`: day, month (UTC)",
            ["key", "period"],
            registry=self._registry,
        )
        self._load_seconds = Histogram(
            *("llamapool_model_load_seconds", "Time of loads", ["model"]),
            buckets=_LOAD_SECONDS,
            registry=self._registry,
        )
        self._lag = Histogram(
            *("llamapool_event_loop_lag_seconds", "Delay of the event loop's timers, measured four times a second"),
            buckets=_LAG_SECONDS,
            registry=self._registry,
        )
        versions = ["version", "llama_cpp_python", "python"]
        build_info = Gauge("llamapool_build_info", "1, with the versions as labels", versions, registry=self._registry)
        build_info.labels(__version__, metadata.version("llama-cpp-python"), platform.python_version()).set(1)

    def _count(self, name: str, *labels: str, n: float = 1) -> None:
        self._counters[name].labels(*labels).inc(n)

    def observe(self, states: Iterable[ModelState]) -> None:
        """Update the ledger. Call it on each change of a model's status."""
        self.ledger.note({state.spec.id: state.loaded for state in states})

    def status_changed(self, event: StatusChanged) -> None:
        """Count loads and measure their time."""
        if event.status is Status.LOADING:
            self._load_started[event.model] = time.monotonic()
            return
        started = self._load_started.pop(event.model, None)
        if started is None:
            return
        results = {Status.READY: "ready", Status.FAILED: "failed"}
        self._count("model_loads", event.model, results.get(event.status, "cancelled"))
        if event.status is Status.READY:
            self._load_seconds.labels(event.model).observe(time.monotonic() - started)

    def ended(self, record: Record) -> None:
        self._count("http_requests", record.route, record.method, str(record.status))
        if record.error:
            self._count("request_errors", record.error)
        if record.key:
            self._count("key_requests", record.key, str(record.status))

    def used(self, usage: ModelUse, key: str) -> None:
        """Count the usage of a request. `key`: the name of its API key, "" = none."""
        for reason in usage.reasons:
            self._count("choices", usage.model, reason)
        if key:
            for kind, n in (("prompt", usage.n_prompt), ("cached", usage.n_cached), ("predicted", usage.n_predicted)):
                self._count("key_tokens", key, kind, n=n)

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.observe(max(loop.time() - due, 0.0))

    def render(self, accept: str, model: str = "") -> tuple[bytes, str]:
        """Return the text and its content type: Prometheus text, or OpenMetrics if `accept` requests it.

        With a `model` id, return only the metrics of that model, without labels, in llama-server's format.
        """
        self.observe(self._states())
        self._budget_of_key.clear()  # of keys without usage this month
        for key, periods in self._spent().items():
            for period, n_tokens in zip(("day", "month"), periods, strict=True):
                if key:
                    self._budget_of_key.labels(key, period).set(n_tokens)
        encode, content_type = choose_encoder(accept)
        if isinstance(encode, partial):  # its default would replace the colon in llamacpp:
            encode = partial(encode, escaping=ALLOWUTF8)
        registry = self._registry
        if model:
            registry, totals = CollectorRegistry(auto_describe=False), {model: self.ledger.totals()[model]}
            registry.register(EngineCollector(lambda: totals, self._windows, labelled=False))
        text = encode(registry)
        if content_type.startswith("text/plain"):
            for gauge, counter in _TYPES_OF_MAX:
                text = text.replace(gauge, counter)
            text = _WHOLE.sub(rb"\1", text)
        return text, content_type
