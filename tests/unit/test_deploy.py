"""Deployment files agree with the code: manifests with schemas and options, the workflow with the Dockerfile."""

import configparser
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from packaging.requirements import Requirement

from server.options.table import TABLE
from server.settings import load_settings
from server.state.database import default_path
from tests.support.kustomize import render

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
LAYERS = [path.parent for path in sorted(KUBERNETES.glob("*/kustomization.yaml"))]
# Kinds of KEDA and the Gateway API, for which kubernetes_validate has no schema
CUSTOM = {"ScaledObject", "InferencePool", "InferenceObjective", "HTTPRoute"}
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


COMPOSE = read(ROOT / "docker-compose.yml")["services"]["llamapool"]
(KSERVE,) = read(ROOT / "deploy/kserve/servingruntime.yaml")["spec"]["containers"]


def base(kind: str) -> dict[str, Any]:
    return next(found for path in (KUBERNETES / "base").glob("*.yaml") if (found := read(path))["kind"] == kind)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = base("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def deployment(layer: str) -> dict[str, Any]:
    named = [each for each in render(KUBERNETES / layer) if each["metadata"]["name"] == "llamapool"]
    return next(dict(each["spec"]) for each in named if each["kind"] == "Deployment")


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_manifests_of_each_layer_are_valid(layer: Path) -> None:
    """Validates against the newest Kubernetes that kubernetes_validate has. Unknown fields are errors."""
    manifests = render(layer)
    assert len({(each["kind"], each["metadata"]["name"]) for each in manifests}) == len(manifests) >= 8
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_pods_of_each_layer_have_no_service_links_and_mount_existing_volumes(layer: Path) -> None:
    spec = deployment(layer.name)["template"]["spec"]
    assert spec["enableServiceLinks"] is False
    (found,) = spec["containers"]
    assert {mount["name"] for mount in found["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    claims = {each["metadata"]["name"] for each in render(layer) if each["kind"] == "PersistentVolumeClaim"}
    mounted = {
        volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume
    }
    assert mounted == claims


@pytest.mark.parametrize(
    ("layer", "has_claim"), [("base", True), ("gpu", True), ("eks", True), ("autoscale", False), ("llm-d", False)]
)
def test_persistent_volumes_are_mounted_by_one_pod_only(layer: str, has_claim: bool) -> None:
    """Default storage classes attach a volume to one node. A layer with several Pods gives each Pod a volume."""
    spec = deployment(layer)
    (models,) = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "models"]
    assert ("persistentVolumeClaim" in models) == has_claim
    assert ("ephemeral" in models) != has_claim
    assert spec["strategy"]["type"] == ("Recreate" if has_claim else "RollingUpdate")


def test_selectors_match_the_labels_of_the_pods() -> None:
    labels = base("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert base("Service")["spec"]["selector"].items() <= labels.items()
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert base(kind)["spec"][field]["matchLabels"].items() <= labels.items()
    scaled = read(KUBERNETES / "autoscale/scaledobject.yaml")["spec"]["scaleTargetRef"]["name"]
    assert scaled == base("Deployment")["metadata"]["name"]


def test_endpoint_picker_references_existing_pods_and_documented_metrics() -> None:
    """Each name in the llm-d layer refers to another manifest, and the picker reads the documented metrics."""

    def layer(name: str) -> Any:
        return read(KUBERNETES / f"llm-d/{name}.yaml")

    pool, picker, service = layer("inferencepool"), layer("epp-deployment")["spec"], layer("epp-service")
    labels = layer("deployment")["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": port["containerPort"]} for port in container()["ports"]]
    assert layer("inferenceobjective")["spec"]["poolRef"]["name"] == pool["metadata"]["name"]
    (backend,) = layer("httproute")["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert pool["spec"]["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= picker["template"]["metadata"]["labels"].items()
    assert picker["template"]["spec"]["serviceAccountName"] == layer("epp-serviceaccount")["metadata"]["name"]
    assert layer("epp-rolebinding")["roleRef"]["name"] == layer("epp-role")["metadata"]["name"]
    plugins = yaml.safe_load(layer("epp-config")["data"]["epp-config.yaml"])["plugins"]
    (extractor,) = [plugin for plugin in plugins if plugin["type"] == "core-metrics-extractor"]
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [extractor] in [yaml.safe_load(block)["plugins"] for block in blocks if "engineConfigs" in block]


def test_autoscaling_uses_a_documented_metric() -> None:
    (trigger,) = read(KUBERNETES / "autoscale/scaledobject.yaml")["spec"]["triggers"]
    (name,) = re.findall(r"llamapool_\w+", trigger["metadata"]["query"])
    assert f"`{name}`" in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")


def test_mounts_and_ports_match_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(base("ConfigMap")["data"]["config.yaml"], encoding="utf-8")
    settings = load_settings(["--config", str(config)], {})
    volumes = {mount["name"]: Path(mount["mountPath"]) for mount in container()["volumeMounts"]}
    assert volumes.keys() == {volume["name"] for volume in pod()["volumes"]}
    (secret,) = base("Secret")["stringData"]
    assert settings.server.keys_file == volumes["keys"] / secret
    assert settings.server.port == container()["ports"][0]["containerPort"]
    environment = {entry["name"]: entry["value"] for entry in container()["env"]}
    assert Path(environment["LLAMAPOOL_CONFIG"]) == volumes["config"] / "config.yaml"
    assert volumes["models"] in Path(environment["LLAMA_CACHE"]).parents
    grace_s = pod()["terminationGracePeriodSeconds"] - container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert grace_s > settings.server.drain_s + settings.server.shutdown_delay_s


def test_kserve_runtime_serves_the_mounted_models(tmp_path: Path) -> None:
    """The arguments are valid and select every GGUF file of the folder."""
    (tmp_path / "demo.gguf").symlink_to(ROOT / "models/demo.gguf")
    arguments = [str(tmp_path) if word == "/mnt/models" else word for word in KSERVE["args"]]
    settings = load_settings(arguments, {"LLAMA_API_KEY": "k", "LLAMAPOOL_SERVER__CLOSED": "true"})
    assert list(settings.models) == ["demo"]
    assert settings.server.port == KSERVE["ports"][0]["containerPort"]
    assert {entry["name"] for entry in KSERVE["env"]} == {"LLAMA_API_KEY"}


def test_pods_with_run_as_non_root_set_a_numeric_user() -> None:
    """The image sets its user by name. The kubelet cannot tell whether that is root and refuses the container."""
    uid = re.search(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert uid is not None
    for context in (KSERVE["securityContext"], pod()["securityContext"]):
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, int(uid[1]))


def test_probes_use_paths_that_need_no_key() -> None:
    paths = {"readinessProbe": "/readyz", "livenessProbe": "/livez"}
    for each, expected in ((container(), paths | {"startupProbe": "/readyz"}), (KSERVE, paths)):
        assert {name: probe["httpGet"]["path"] for name, probe in each.items() if name.endswith("Probe")} == expected


def systemd_unit() -> configparser.RawConfigParser:
    """Return the parsed systemd unit. The values of a repeated name are joined by line breaks."""

    class Repeated(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Repeated, strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ROOT / "deploy/systemd/llamapool.service").read_text(encoding="utf-8"))
    return parser


def service_environment() -> dict[str, str]:
    assignments = systemd_unit()["Service"]["Environment"].split()
    return dict(assignment.split("=", 1) for assignment in assignments)


def test_every_environment_variable_is_read_by_the_server() -> None:
    own = {f"LLAMAPOOL_SERVER__{key.upper()}" for key in TABLE.keys("server")} | {"LLAMAPOOL_CONFIG", "LLAMA_CACHE"}
    names = {*COMPOSE["environment"], *(entry["name"] for entry in container()["env"]), *service_environment()}
    assert names - {"PYTHONUNBUFFERED", "XDG_STATE_HOME"} <= TABLE.by_env.keys() | own


def test_systemd_service_stores_state_in_its_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", service_environment()["XDG_STATE_HOME"])
    assert default_path().parent == Path("%S") / systemd_unit()["Service"]["StateDirectory"]


def test_systemd_service_may_call_seccomp() -> None:
    """systemd kills a process at a system call outside the sets, and @system-service does not contain seccomp."""
    assert "seccomp" in systemd_unit()["Service"]["SystemCallFilter"].split()


def test_image_compose_and_kubernetes_refuse_requests_without_a_key() -> None:
    assert "LLAMAPOOL_SERVER__CLOSED=true" in DOCKERFILE
    assert COMPOSE["environment"]["LLAMA_API_KEY"].startswith("${LLAMA_API_KEY:?")  # compose fails if it is not set
    config = yaml.safe_load(base("ConfigMap")["data"]["config.yaml"])
    assert config["server"]["closed"] is True
    assert yaml.safe_load(base("Secret")["stringData"]["keys.yaml"]) == {"keys": []}


def test_files_that_the_dockerfile_copies_exist_and_are_not_ignored() -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for source in {word for line in copied for word in line.split()}:
        assert source in included, source
        assert list(ROOT.glob(source)), source


def test_locks_have_hashes_or_versions_and_no_index_urls() -> None:
    for lock in (ROOT / "deploy/locks").glob("*.txt"):
        lines = lock.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if "://" in line or line.startswith("--")], lock.name
        assert all("--hash=sha256:" in line or "==" in line or line.startswith("#") for line in lines), lock.name


def test_locks_contain_every_requirement_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    for name, texts in (("server", project["dependencies"]), ("dev", [*project["dependencies"], *extras])):
        lock = (ROOT / f"deploy/locks/{name}.txt").read_text(encoding="utf-8")
        locked: dict[str, list[str]] = {}
        for package, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, re.MULTILINE):
            locked.setdefault(package, []).append(version)
        for text in texts:
            requirement = Requirement(text)
            versions = locked.get(re.sub(r"[-_.]+", "-", requirement.name).lower(), [])
            assert versions, f"{text} is not in deploy/locks/{name}.txt: make locks"
            assert all(requirement.specifier.contains(version) for version in versions), f"{text}: make locks"


def test_ray_serve_file_uses_existing_arguments_of_the_application() -> None:
    """Looks the names up in the source of `llamapool.ray.application`, as importing it needs Ray."""
    (application,) = read(ROOT / "deploy/ray/serve.yaml")["applications"]
    assert application["import_path"] == "llamapool.ray:build"
    source = (ROOT / "llamapool/ray/application.py").read_text(encoding="utf-8")
    for name in (*application["args"], *application["args"]["replicas"]):
        assert re.search(rf"^    {name}: ", source, re.MULTILINE), name


def instruction(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.+)$", joined, re.MULTILINE)


def test_cmake_build_argument_extends_the_default_flags() -> None:
    """If it replaced them, llama.cpp would be compiled for the build machine's CPU only."""
    assert 'CMAKE_ARGS=""' in instruction("ARG")
    (flags,) = [line for line in instruction("ENV") if "CMAKE_ARGS" in line]
    for flag in ("-DGGML_NATIVE=off", "-DGGML_BACKEND_DL=on", "-DGGML_CPU_ALL_VARIANTS=on"):
        assert flag in flags
    assert "${CMAKE_ARGS}" in flags


def test_release_workflow_builds_the_cuda_image_as_the_dockerfile_documents() -> None:
    images = read(ROOT / ".github/workflows/release.yml")["jobs"]["image"]["strategy"]["matrix"]["include"]
    (arguments,) = [each["arguments"] for each in images if each["suffix"]]
    head = re.sub(r'"', "", DOCKERFILE.partition("ARG BUILD_IMAGE")[0])
    for argument in arguments.strip().splitlines():
        assert argument in head
    assert "CMAKE_CUDA_ARCHITECTURES=" in arguments


def test_release_workflow_pins_each_action_to_a_commit() -> None:
    """A tag can be moved to other code. The comment after the hash names its version."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert len(used) >= 10
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_manifest_archive_uses_the_image_of_its_version(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "deploy/kubernetes", source / "deploy/kubernetes")
    shutil.copy(ROOT / "deploy/manifests.sh", source / "deploy")
    command = [str(source / "deploy/manifests.sh"), "registry.example/llamapool", "1.2.3"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with tarfile.open(source / "dist/llamapool-kubernetes-1.2.3.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    extracted = tmp_path / "llamapool-kubernetes-1.2.3"
    images = {name: read(extracted / name / "kustomization.yaml")["images"] for name in ("base", "gpu")}
    assert images == {
        "base": [{"name": "llamapool", "newName": "registry.example/llamapool", "newTag": "1.2.3"}],
        "gpu": [{"name": "registry.example/llamapool", "newTag": "1.2.3-cuda"}],
    }
