"""Metrics as the endpoint picker of the llm-d router and of the Gateway API inference extension reads them.

`Picker` follows its source (pkg/epp/framework/plugins/datalayer/extractor/metrics: spec.go, loraspec.go, extractor.go).
A specification is the name of a gauge or counter with label values. Of several series that match, the picker reads the
first with the newest timestamp; Llamapool's have no timestamps. For LoRA it reads the series with the highest value.
The labels ``block_size`` and ``num_gpu_blocks`` are whole numbers, and adapter names are separated by commas.
"""

import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from server.engine.engine import Engine
from tests.api.conftest import GoLive, Live, chat_request, until
from tests.support.fakes import FakeLoader

_SPEC = re.compile(r"^\s*(\S+?)\s*(?:\{([^}]*)\})?\s*$")
METRICS_PAGE = Path(__file__).resolve().parents[3] / "docs/metrics.md"


def engine_config() -> dict[str, str]:
    """Return the picker's configuration from docs/metrics.md."""
    blocks = re.findall(r"```yaml\n(.*?)```", METRICS_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (config,) = [found for block in blocks if "engineConfigs" in block for found in [yaml.safe_load(block)]]
    (plugin,) = [each for each in config["plugins"] if each["type"] == "core-metrics-extractor"]
    (engine,) = plugin["parameters"]["engineConfigs"]
    assert (engine.pop("name"), plugin["parameters"]["defaultEngine"]) == ("llamapool", "llamapool")
    return cast(dict[str, str], engine)


class Picker:
    """One scrape, read like the picker."""

    def __init__(self, text: str) -> None:
        self._families = {family.name: family for family in text_string_to_metric_families(text)}

    def _matching(self, spec: str) -> list[Sample]:
        name, labels = _SPEC.match(spec).groups()  # type: ignore[union-attr]
        wanted = dict(pair.split("=") for pair in (labels or "").replace('"', "").split(",") if pair)
        family = self._families[name]
        assert family.type in ("gauge", "counter")
        return [s for s in family.samples if wanted.items() <= s.labels.items()]

    def value(self, spec: str) -> float:
        latest, recent = None, -1.0
        for sample in self._matching(spec):
            at = float(sample.timestamp or 0)
            if at > recent:
                latest, recent = sample, at
        assert latest is not None
        return latest.value

    def labels(self, spec: str) -> Mapping[str, str]:
        """Return the labels of the series with the highest value, empty without a series."""
        found = self._matching(spec)
        return max(found, key=lambda s: s.value).labels if found else {}


async def scrape(api: Any) -> Picker:
    return Picker((await api.client.get("/metrics")).text)


@asynccontextmanager
async def serve_one_slot(live: GoLive, **settings: Any) -> AsyncIterator[tuple[Live, threading.Semaphore]]:
    """Start a server with one slot that runs one step for each permit of the semaphore."""
    steps = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=1, steps=steps), **settings) as running:
        try:
            yield running, steps
        finally:
            steps.release(10_000)


async def test_picker_reads_queue_running_requests_and_kv_usage(live: GoLive) -> None:
    specs = engine_config()
    async with serve_one_slot(live, server={"metrics": True}) as (running, steps):
        idle = await scrape(running.api)
        loaded = [idle.value(specs[f"{name}Spec"]) for name in ("queuedRequests", "runningRequests", "kvUsage")]
        assert loaded == [0, 0, 0]
        connections = [await running.connect(chat_request(max_tokens=200)) for _ in range(3)]
        await until(lambda: n_load(running) == 3)
        while (busy := await scrape(running.api)).value(specs["queuedRequestsSpec"]) != 2:
            await run_step(running, steps)  # requests that arrive during a step are counted after it
        assert busy.value(specs["runningRequestsSpec"]) == 1
        assert 0 < busy.value(specs["kvUsageSpec"]) <= 1
        cache = busy.labels(specs["cacheInfoSpec"])
        assert int(cache["block_size"]) * int(cache["num_gpu_blocks"]) == 256
        assert busy.labels(specs["loraSpec"]) == {}
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()


async def run_step(running: Live, steps: threading.Semaphore) -> None:
    loaded = running.api.loaded()
    before = loaded.stats.n_decode
    steps.release()
    await until(lambda: loaded.stats.n_decode > before)


def n_load(running: Live) -> int:
    """Return the number of waiting and running choices."""
    engine = running.api.loaded().generator
    assert isinstance(engine, Engine)
    return engine.n_load


async def test_picker_reads_adapters_of_running_and_waiting_requests(live: GoLive) -> None:
    spec = engine_config()["loraSpec"]
    model = {"path": "x.gguf", "load": "startup", "lora": ["a/pirate.gguf", "b/formal.gguf"]}
    async with serve_one_slot(live, models={"demo": model}, server={"metrics": True}) as (running, steps):
        assert (await scrape(running.api)).labels(spec)["max_lora"] == "2"
        writers = []
        for n in range(2):
            _, writer = await running.connect(chat_request(max_tokens=200, lora=[{"id": n, "scale": 1.0}]))
            writers.append(writer)
            await until(lambda n=n: n_load(running) == n + 1)  # type: ignore[misc]
        while not (found := (await scrape(running.api)).labels(spec))["running_lora_adapters"]:
            await run_step(running, steps)
        assert (found["running_lora_adapters"], found["waiting_lora_adapters"]) == ("pirate", "formal")
        for writer in writers:
            writer.close()
            await writer.wait_closed()
