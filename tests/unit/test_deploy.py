"""What ships beside the code fits it: manifests against the real schemas, variables against the option table."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from server.settings import TABLE

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/llamapool.yaml").read_text(encoding="utf-8")))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["llamapool"]


def container() -> dict[str, Any]:
    deployment: dict[str, Any] = MANIFESTS[0]["spec"]["template"]["spec"]
    return {"grace_s": deployment["terminationGracePeriodSeconds"], **deployment["containers"][0]}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_the_manifests_are_what_kubernetes_takes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_manifests_are_a_deployment_and_a_service_that_finds_it() -> None:
    deployment, service = MANIFESTS
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_probes_ask_paths_that_need_no_key() -> None:
    probes = [container()[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) <= {"/readyz", "/livez", "/health"}


def test_every_variable_is_one_that_the_server_reads() -> None:
    names = {*COMPOSE["environment"], *(entry["name"] for entry in container()["env"])}
    ours = {f"LLAMAPOOL_SERVER__{key.upper()}" for key in TABLE.keys("server")}
    assert names <= TABLE.by_env.keys() | ours


def test_nobody_is_served_without_a_key() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "LLAMAPOOL_SERVER__CLOSED=true" in image
    assert COMPOSE["environment"]["LLAMA_API_KEY"].startswith("${LLAMA_API_KEY:?")  # compose stops where it is not set
    entries = {entry["name"]: entry for entry in container()["env"]}
    assert entries["LLAMAPOOL_SERVER__CLOSED"]["value"] == "true"
    assert "secretKeyRef" in entries["LLAMA_API_KEY"]["valueFrom"]


def test_running_answers_get_the_time_to_end() -> None:
    drain_s = TABLE.entries["server", "drain_s"].default
    assert container()["grace_s"] > drain_s
    assert int(COMPOSE["stop_grace_period"].removesuffix("s")) > drain_s
