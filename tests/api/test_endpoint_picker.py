"""What the endpoint picker of the llm-d router (and of the Gateway API inference extension, from which it comes) reads.

Its rules, as of its source (pkg/epp/framework/plugins/datalayer/extractor/metrics: spec.go, loraspec.go, extractor.go):
a specification is a name with label values that must match; of the series that match, the first with the newest
timestamp counts, and ours have none, so the first; gauges and counters are read; of LoRA's the one with the highest
value; ``block_size`` and ``num_gpu_blocks`` are labels, whole numbers; names of adapters stand between commas.
"""

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.api.conftest import GoLive, Live, Serve, chat_request, until
from tests.api.test_models import TWO
from tests.fakes import FakeLoader, FakeRunner

_SPEC = re.compile(r"^\s*(\S+?)\s*(?:\{([^}]*)\})?\s*$")
CONFIGURED = Path(__file__).resolve().parents[2] / "docs/metrics.md"


def engine_config() -> dict[str, str]:
    """What docs/metrics.md gives the picker."""
    blocks = re.findall(r"```yaml\n(.*?)```", CONFIGURED.read_text(encoding="utf-8"), re.DOTALL)
    (config,) = [found for block in blocks if "engineConfigs" in block for found in [yaml.safe_load(block)]]
    (plugin,) = [each for each in config["plugins"] if each["type"] == "core-metrics-extractor"]
    (engine,) = plugin["parameters"]["engineConfigs"]
    assert (engine.pop("name"), plugin["parameters"]["defaultEngine"]) == ("llamapool", "llamapool")
    return engine


class Picker:
    """One scrape, read by those rules."""

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
        """Of the newest by its value; none where there is no series."""
        found = self._matching(spec)
        return max(found, key=lambda s: s.value).labels if found else {}


async def scrape(api: Any) -> Picker:
    return Picker((await api.client.get("/metrics")).text)


async def test_one_models_load_is_read(live: GoLive) -> None:
    specs, steps = engine_config(), threading.Semaphore(1)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=1, steps=steps))
    async with live(loader, server={"metrics": True}) as running:
        idle = await scrape(running.api)
        assert [idle.value(specs[f"{name}Spec"]) for name in ("queuedRequests", "runningRequests", "kvUsage")] == [
            0,
            0,
            0,
        ]
        connections = [await running.connect(chat_request(max_tokens=50)) for _ in range(3)]
        await until(lambda: len(loads(running)) == 3)
        reader, _ = connections[0]
        await reader.readuntil(b"}\n\n")
        busy = await scrape(running.api)
        assert busy.value(specs["queuedRequestsSpec"]) == 2
        assert busy.value(specs["runningRequestsSpec"]) == 1
        assert 0 < busy.value(specs["kvUsageSpec"]) <= 1
        cache = busy.labels(specs["cacheInfoSpec"])
        assert int(cache["block_size"]) * int(cache["num_gpu_blocks"]) == 256
        assert busy.labels(specs["loraSpec"]) == {}
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()
        steps.release(1000)


def loads(running: Live) -> list[Any]:
    (state,) = running.api.pool.states()
    engine: Any = state.loaded.generator  # type: ignore[union-attr]
    return list(engine._queue.open.values())


async def test_all_models_are_one_series(serve: Serve) -> None:
    specs = engine_config()
    async with serve(models=TWO, server={"metrics": True}) as api:
        await api.client.post("/v1/completions", json={"model": "b", "prompt": "Hi", "max_tokens": 2})
        text = (await api.client.get("/metrics")).text
        for spec in specs.values():
            assert len(re.findall(rf"^{spec}[ {{]", text, re.MULTILINE)) == (0 if spec == specs["loraSpec"] else 1)


async def test_a_single_model_can_be_chosen_by_its_label(serve: Serve) -> None:
    async with serve(models=TWO, server={"metrics": True}) as api:
        await api.client.post("/v1/completions", json={"model": "b", "prompt": "Hi", "max_tokens": 2})
        found = await scrape(api)
        assert found.value("llamapool_kv_cells{model=b}") == 1024
        assert found.value("llamapool_requests_deferred{model=b}") == 0


async def test_adapters_of_running_and_of_waiting_requests(live: GoLive) -> None:
    spec, steps = engine_config()["loraSpec"], threading.Semaphore(1)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=1, steps=steps))
    model = {"path": "x.gguf", "load": "startup", "lora": ["a/pirate.gguf", "b/formal.gguf"]}
    async with live(loader, models={"demo": model}, server={"metrics": True}) as running:
        assert (await scrape(running.api)).labels(spec)["max_lora"] == "2"
        writers = []
        for n, id_ in enumerate((0, 1)):
            reader, writer = await running.connect(chat_request(max_tokens=50, lora=[{"id": id_, "scale": 1.0}]))
            writers.append(writer)
            await until(lambda n=n: len(loads(running)) == n + 1)
            if n == 0:
                await reader.readuntil(b"}\n\n")
        found = (await scrape(running.api)).labels(spec)
        assert (found["running_lora_adapters"], found["waiting_lora_adapters"]) == ("pirate", "formal")
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        steps.release(1000)
