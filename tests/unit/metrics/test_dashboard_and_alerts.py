"""PromQL of the dashboard and the alert rules parses, and uses only metrics and labels that the server exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from server.engine.stats import EngineStats
from server.metrics.collector import ServerCollector
from server.metrics.exposition import Metrics
from server.pool.events import StatusChanged
from server.pool.state import Status
from server.telemetry.record import ModelUse, Record

MONITORING = Path(__file__).resolve().parents[3] / "deploy/monitoring"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
SCRAPE_LABELS = {"job", "instance"}  # labels that Prometheus adds
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


class Engine:
    stats = EngineStats(accepted_at=[1])


def exported() -> dict[str, set[str]]:
    """Return the labels of each exported sample by its name."""
    metrics = Metrics()
    metrics.ledger.note({"demo": Engine()})
    record = Record("1", "GET", "/", key="ada", route="/", status=500, error="internal_error")
    metrics.ended(record)
    metrics.used(ModelUse("demo", reasons=["eos"]), "ada")
    for status in (Status.LOADING, Status.READY):
        metrics.status_changed(StatusChanged("demo", status))
    found: dict[str, set[str]] = {}
    for family in metrics._registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    for family in ServerCollector(lambda: ()).collect():  # no series without a model
        found.setdefault(family.name, set()).update(getattr(family, "_labelnames", ()))
    return found


EXPORTED = exported()


def expressions() -> Iterator[tuple[str, str]]:
    for title, target in TARGETS:
        yield title, target["expr"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def parse(text: str) -> Any:
    text = text.replace("$__rate_interval", "5m")
    return promql_parser.parse(text)


def selectors(node: Any) -> Iterator[Any]:
    """Yield the vector selectors in `node`."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "args", "vector_selector", "param"):
        inner = getattr(node, name, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None and not isinstance(each, str | float):
                yield from selectors(each)


@pytest.mark.parametrize(("title", "text"), list(expressions()), ids=lambda text: text[:40])
def test_expression_uses_exported_metrics_and_labels(title: str, text: str) -> None:
    expression = parse(text)
    found = list(selectors(expression))
    assert len(found) == len(re.findall(r"(?:llamapool_|llamacpp:|process_)\w+", text)), title
    labels = set(SCRAPE_LABELS)
    for selector in found:
        assert selector.name in EXPORTED, (title, selector.name)
        labels |= EXPORTED[selector.name]
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= EXPORTED[selector.name] | SCRAPE_LABELS, (title, selector.name)
    for names in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", text):
        assert {name.strip() for name in names.split(",")} <= labels | {"le"}, title


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda target: str(target)[:30])
def test_legend_uses_labels_of_its_expression(title: str, target: dict[str, Any]) -> None:
    names = set(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]))
    grouped = re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
    known = {name.strip() for names in grouped for name in names.split(",")}
    if not grouped:
        known = SCRAPE_LABELS.union(*(EXPORTED[s.name] for s in selectors(parse(target["expr"]))))
    assert names <= known, title


def test_alerts_have_severity_and_a_summary_with_instance() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.instance" in rule["annotations"]["summary"]
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = {n.strip() for names in re.findall(r"\bby\s*\(([^)]*)\)", rule["expr"]) for n in names.split(",")}
        assert used <= (grouped or {"job", "instance", "model"}), rule["alert"]
