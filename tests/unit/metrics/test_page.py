"""docs/metrics.md and what is exported are one."""

import re
from pathlib import Path

from server.engine.stats import EngineStats
from server.metrics.exposition import Metrics
from server.metrics.gpu import GpuCollector
from tests.unit.metrics.test_gpu import fake_nvml

PAGE = (Path(__file__).resolve().parents[3] / "docs/metrics.md").read_text(encoding="utf-8")


def exported() -> set[str]:
    class Engine:
        stats = EngineStats(accepted_at=[1])

    metrics = Metrics(gpus=GpuCollector(fake_nvml()))
    metrics.ledger.note({"demo": Engine()})
    return set(re.findall(r"^# TYPE (\S+) ", metrics.render("")[0].decode(), re.MULTILINE))


def test_every_metric_is_explained_and_nothing_else() -> None:
    explained = set(re.findall(r"`((?:llamacpp:|llamapool_|process_)[a-z_]+)`", PAGE))
    named = exported()
    theirs = {name for name in named if name.startswith("llamacpp:")}
    same = {name.replace("llamacpp:", "llamapool_") for name in theirs}
    assert same < named
    assert named - same == explained - same
    assert theirs <= explained
