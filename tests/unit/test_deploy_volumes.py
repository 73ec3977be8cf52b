"""The Kubernetes layers' volumes: what binds with a cluster's default class, and how many Pods can use it."""

import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.support.kustomize import render

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
COMPONENTS = KUBERNETES / "components"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_base_claims_what_default_classes_provide() -> None:
    """Those of kind, k3s, GKE and AKS attach a volume to one node; a named class would bind in one of them only."""
    claim = read(KUBERNETES / "base/pvc.yaml")["spec"]
    assert claim["accessModes"] == ["ReadWriteOnce"]
    assert "storageClassName" not in claim
    deployment = read(KUBERNETES / "base/deployment.yaml")["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}  # a second Pod on another node would wait for the volume


@pytest.mark.parametrize("layer", ["autoscale", "llm-d"])
def test_layers_with_several_pods_do_not_share_the_bases_claim(layer: str) -> None:
    assert read(KUBERNETES / layer / "kustomization.yaml")["components"] == ["../components/volume-per-pod"]


def test_a_shared_volume_names_a_class_since_no_default_one_can_be_shared() -> None:
    claim = read(COMPONENTS / "volume-shared/pvc.yaml")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["storageClassName"]


def rendered(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a layer's manifests by kind, without those of the endpoint picker."""
    found = [each for each in render(folder) if not each["metadata"]["name"].endswith("-epp")]
    for each in found:
        if each["kind"] in ("Deployment", "PersistentVolumeClaim", "StorageClass"):
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    return {each["kind"]: each for each in found}


def volume(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    volumes = manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
    return next(dict(each) for each in volumes if each["name"] == "models")


@pytest.mark.parametrize("layer", ["base", "gpu", "eks"])
def test_one_pod_has_one_claim(layer: str) -> None:
    manifests = rendered(KUBERNETES / layer)
    claim = manifests["PersistentVolumeClaim"]
    assert volume(manifests)["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert manifests["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_eks_brings_the_class_that_its_claim_names() -> None:
    manifests = rendered(KUBERNETES / "eks")
    named = manifests["PersistentVolumeClaim"]["spec"]["storageClassName"]
    assert named == manifests["StorageClass"]["metadata"]["name"]


@pytest.mark.parametrize("layer", ["autoscale", "llm-d"])
def test_each_of_several_pods_has_a_volume_of_its_own(layer: str) -> None:
    manifests = rendered(KUBERNETES / layer)
    assert "PersistentVolumeClaim" not in manifests
    template = volume(manifests)["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert template["accessModes"] == ["ReadWriteOnce"]
    assert "persistentVolumeClaim" not in volume(manifests)
    assert manifests["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"


def test_a_layer_can_share_one_volume_instead(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    layer = tmp_path / "kubernetes/autoscale/kustomization.yaml"
    layer.write_text(layer.read_text(encoding="utf-8").replace("volume-per-pod", "volume-shared"), encoding="utf-8")
    manifests = rendered(layer.parent)
    assert manifests["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert manifests["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
