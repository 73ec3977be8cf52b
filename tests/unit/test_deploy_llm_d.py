"""The manifests for the llm-d router and the Gateway API inference extension: no schema of theirs is in a package, so
each member is compared with what their CRDs had in August 2026 (config/crd in both repositories), and every name with
what it leads to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LAYER = ROOT / "deploy/kubernetes/llm-d"
BASE = LAYER.parent / "base"

# (kind, apiVersion) to the members of its spec, as deep as ours go; a list stands for each of its items.
MEMBERS: dict[tuple[str, str], Any] = {
    ("InferencePool", "inference.networking.k8s.io/v1"): {
        "selector": {"matchLabels": str},
        "targetPorts": [{"number": int}],
        "endpointPickerRef": {"name": str, "port": {"number": int}, "failureMode": str, "group": str, "kind": str},
        "appProtocol": str,
    },
    ("InferenceObjective", "llm-d.ai/v1alpha2"): {
        "poolRef": {"name": str, "group": str, "kind": str},
        "priority": int,
    },
    ("HTTPRoute", "gateway.networking.k8s.io/v1"): {
        "parentRefs": [{"name": str, "namespace": str}],
        "rules": [
            {
                "matches": [{"path": {"type": str, "value": str}}],
                "backendRefs": [{"group": str, "kind": str, "name": str, "port": int}],
                "timeouts": {"request": str},
            }
        ],
    },
}
PLUGINS = {  # pkg/epp/framework/plugins: their types
    *("metrics-data-source", "core-metrics-extractor", "approx-prefix-cache-producer", "prefix-cache-scorer"),
    *("queue-scorer", "kv-cache-utilization-scorer", "max-score-picker", "single-profile-handler"),
}


def read(name: str, folder: Path = LAYER) -> Any:
    return yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))


def picker() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read("epp-config")["data"]["epp-config.yaml"])
    return found


def strangers(value: Any, known: Any, at: str = "spec") -> Iterator[str]:
    """What the schema has not, or has as something else."""
    if isinstance(known, list):
        if not isinstance(value, list):
            yield at
            return
        for i, item in enumerate(value):
            yield from strangers(item, known[0], f"{at}[{i}]")
    elif isinstance(known, dict):
        for name, inner in value.items():
            if name not in known:
                yield f"{at}.{name}"
            else:
                yield from strangers(inner, known[name], f"{at}.{name}")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from strangers(inner, known, f"{at}.{name}")
    elif not isinstance(value, known):
        yield at


def test_each_manifest_has_the_members_of_its_kind() -> None:
    seen = set()
    for path in sorted(LAYER.glob("*.yaml")):
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        kind = manifest["kind"], manifest["apiVersion"]
        if kind in MEMBERS:
            seen.add(kind)
            assert list(strangers(manifest["spec"], MEMBERS[kind])) == [], path.name
    assert seen == MEMBERS.keys()


def test_a_member_of_no_schema_is_found() -> None:
    pool = MEMBERS["InferencePool", "inference.networking.k8s.io/v1"]
    assert list(strangers({"targetPortNumber": 8080}, pool)) == ["spec.targetPortNumber"]
    assert list(strangers({"targetPorts": [{"number": "http"}]}, pool)) == ["spec.targetPorts[0].number"]
    assert list(strangers({"selector": {"matchLabels": {"app": 1}}}, pool)) == ["spec.selector.matchLabels.app"]


def test_the_pool_selects_the_pods_and_their_port() -> None:
    pool = read("inferencepool")
    labels = read("deployment")["spec"]["template"]["metadata"]["labels"]
    container = read("deployment", BASE)["spec"]["template"]["spec"]["containers"][0]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": port["containerPort"]} for port in container["ports"]]
    assert read("deployment")["metadata"]["name"] == read("deployment", BASE)["metadata"]["name"]
    assert read("inferenceobjective")["spec"]["poolRef"]["name"] == pool["metadata"]["name"]
    (backend,) = read("httproute")["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert pool["apiVersion"].startswith(backend["group"])


def test_the_pool_names_the_picker() -> None:
    reference = read("inferencepool")["spec"]["endpointPickerRef"]
    service, deployment = read("epp-service"), read("epp-deployment")["spec"]
    pod = deployment["template"]
    assert reference["name"] == service["metadata"]["name"]
    (port,) = [port for port in service["spec"]["ports"] if port["port"] == reference["port"]["number"]]
    (container,) = pod["spec"]["containers"]
    assert port["targetPort"] in {port["name"] for port in container["ports"]}
    assert f"--grpc-port={reference['port']['number']}" in container["args"]
    assert f"--pool-name={read('inferencepool')['metadata']['name']}" in container["args"]
    assert service["spec"]["selector"] == deployment["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["serviceAccountName"] == read("epp-serviceaccount")["metadata"]["name"]
    assert read("epp-rolebinding")["roleRef"]["name"] == read("epp-role")["metadata"]["name"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["configMap"]["name"] == read("epp-config")["metadata"]["name"]
    (file,) = read("epp-config")["data"]
    assert f"--config-file={container['volumeMounts'][0]['mountPath']}/{file}" in container["args"]


def test_the_picker_may_watch_what_it_reads() -> None:
    allowed = {(rule["apiGroups"][0], resource) for rule in read("epp-role")["rules"] for resource in rule["resources"]}
    assert allowed >= {
        ("inference.networking.k8s.io", "inferencepools"),
        ("llm-d.ai", "inferenceobjectives"),
        ("", "pods"),
    }


def test_the_pickers_configuration_is_whole() -> None:
    config = picker()
    declared = {plugin["type"] for plugin in config["plugins"]}
    assert declared <= PLUGINS
    (profile,) = config["schedulingProfiles"]
    sources = config["dataLayer"]["sources"]
    named = [plugin["pluginRef"] for plugin in (*profile["plugins"], *sources)]
    named += [extractor["pluginRef"] for source in sources for extractor in source["extractors"]]
    assert set(named) <= declared


def test_the_pickers_metrics_are_those_that_the_documentation_gives_it() -> None:
    """Which `tests/api/test_endpoint_picker.py` reads from a server, by the picker's own rules."""
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    (shown,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "engineConfigs" in block]
    (documented,) = yaml.safe_load(shown)["plugins"]
    (extractor,) = [plugin for plugin in picker()["plugins"] if plugin["type"] == "core-metrics-extractor"]
    assert extractor == documented


def test_the_picker_reads_metrics_without_a_key() -> None:
    (container,) = read("deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "LLAMAPOOL_SERVER__METRICS_OPEN", "value": "true"} in container["env"]
    config = yaml.safe_load(read("configmap", BASE)["data"]["config.yaml"])
    assert config["server"]["metrics"] is True
