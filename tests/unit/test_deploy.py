"""What ships beside the code fits it: manifests against the real schemas, variables against the option table, images
against the Dockerfile.
"""

import configparser
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from server.options.table import TABLE
from server.settings import load_settings
from server.state.database import default_path
from tests.support.kustomize import render

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
LAYERS = [path.parent for path in sorted(KUBERNETES.glob("*/kustomization.yaml"))]
# Kinds of KEDA and the Gateway API, for which kubernetes_validate has no schema
CUSTOM = {"ScaledObject", "InferencePool", "InferenceObjective", "HTTPRoute"}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["llamapool"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def base(kind: str) -> dict[str, Any]:
    return next(found for path in (KUBERNETES / "base").glob("*.yaml") if (found := read(path))["kind"] == kind)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = base("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_what_a_layer_deploys_is_valid(layer: Path) -> None:
    """Against the schemas of the newest Kubernetes that kubernetes_validate has, without unknown fields."""
    manifests = render(layer)
    assert len({(each["kind"], each["metadata"]["name"]) for each in manifests}) == len(manifests) >= 8
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_layers_pod_gets_no_service_links_and_mounts_volumes_that_exist(layer: Path) -> None:
    spec = deployment(layer.name)["template"]["spec"]
    assert spec["enableServiceLinks"] is False
    (found,) = spec["containers"]
    assert {mount["name"] for mount in found["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    claims = {each["metadata"]["name"] for each in render(layer) if each["kind"] == "PersistentVolumeClaim"}
    wanted = {
        volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume
    }
    assert wanted == claims


@pytest.mark.parametrize(
    ("layer", "has_claim"), [("base", True), ("gpu", True), ("eks", True), ("autoscale", False), ("llm-d", False)]
)
def test_a_volume_is_used_by_one_pod(layer: str, has_claim: bool) -> None:
    """Default storage classes attach a volume to one node. A layer with several Pods gives each Pod a volume."""
    spec = deployment(layer)
    (models,) = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "models"]
    assert ("persistentVolumeClaim" in models) == has_claim
    assert ("ephemeral" in models) != has_claim
    assert spec["strategy"]["type"] == ("Recreate" if has_claim else "RollingUpdate")


def deployment(layer: str) -> dict[str, Any]:
    named = [each for each in render(KUBERNETES / layer) if each["metadata"]["name"] == "llamapool"]
    return next(dict(each["spec"]) for each in named if each["kind"] == "Deployment")


def test_a_service_and_the_rest_find_the_pods() -> None:
    labels = base("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert base("Service")["spec"]["selector"].items() <= labels.items()
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert base(kind)["spec"][field]["matchLabels"].items() <= labels.items()
    scaled = read(KUBERNETES / "autoscale/scaledobject.yaml")["spec"]["scaleTargetRef"]["name"]
    assert scaled == base("Deployment")["metadata"]["name"]


def test_the_endpoint_picker_finds_pods_and_metrics() -> None:
    """Each name in the llm-d layer leads to another manifest, and the picker reads the documented metrics."""

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
    shown = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [extractor] in [yaml.safe_load(block)["plugins"] for block in shown if "engineConfigs" in block]


def test_the_metric_that_scales_is_there() -> None:
    (trigger,) = read(KUBERNETES / "autoscale/scaledobject.yaml")["spec"]["triggers"]
    (name,) = re.findall(r"llamapool_\w+", trigger["metadata"]["query"])
    assert f"`{name}`" in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")


def test_what_is_mounted_is_what_the_configuration_names(tmp_path: Path) -> None:
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


def test_the_kserve_runtime_serves_the_models_that_are_mounted(tmp_path: Path) -> None:
    """The arguments are valid and select every GGUF file of the folder, and the probes need no key."""
    (tmp_path / "demo.gguf").symlink_to(ROOT / "models/demo.gguf")
    (container,) = read(ROOT / "deploy/kserve/servingruntime.yaml")["spec"]["containers"]
    arguments = [str(tmp_path) if word == "/mnt/models" else word for word in container["args"]]
    settings = load_settings(arguments, {"LLAMA_API_KEY": "k", "LLAMAPOOL_SERVER__CLOSED": "true"})
    assert list(settings.models) == ["demo"]
    assert settings.server.port == container["ports"][0]["containerPort"]
    assert {entry["name"] for entry in container["env"]} == {"LLAMA_API_KEY"}
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {
        "/readyz",
        "/livez",
    }


def test_a_pod_that_must_not_be_root_names_its_user_by_number() -> None:
    """The image's user is a name. The kubelet cannot tell whether it is root, and does not create the container."""
    (kserve,) = read(ROOT / "deploy/kserve/servingruntime.yaml")["spec"]["containers"]
    uid = re.search(r"useradd .*--uid (\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert uid is not None
    for context in (kserve["securityContext"], pod()["securityContext"]):
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, int(uid[1]))


def test_probes_ask_paths_that_need_no_key() -> None:
    probes = [container()[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) <= {"/readyz", "/livez", "/health"}


def service() -> configparser.RawConfigParser:
    """systemd's file; of names that are given twice the values stand one below the other."""

    class Several(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Several, strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ROOT / "deploy/systemd/llamapool.service").read_text(encoding="utf-8"))
    return parser


def variables_of_the_service() -> dict[str, str]:
    words = service()["Service"]["Environment"].split()
    return dict(word.split("=", 1) for word in words)


def test_every_variable_is_one_that_the_server_reads() -> None:
    ours = {f"LLAMAPOOL_SERVER__{key.upper()}" for key in TABLE.keys("server")} | {"LLAMAPOOL_CONFIG", "LLAMA_CACHE"}
    names = {*COMPOSE["environment"], *(entry["name"] for entry in container()["env"]), *variables_of_the_service()}
    assert names - {"PYTHONUNBUFFERED", "XDG_STATE_HOME"} <= TABLE.by_env.keys() | ours


def test_the_service_stores_its_state_in_its_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", variables_of_the_service()["XDG_STATE_HOME"])
    assert default_path().parent == Path("%S") / service()["Service"]["StateDirectory"]


def test_the_service_may_filter_system_calls() -> None:
    """systemd kills a process at a call that is in none of the sets; @system-service has no seccomp."""
    assert "seccomp" in service()["Service"]["SystemCallFilter"].split()


def test_nobody_is_served_without_a_key() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "LLAMAPOOL_SERVER__CLOSED=true" in image
    assert COMPOSE["environment"]["LLAMA_API_KEY"].startswith("${LLAMA_API_KEY:?")  # compose stops where it is not set
    config = yaml.safe_load(base("ConfigMap")["data"]["config.yaml"])
    assert config["server"]["closed"] is True
    assert yaml.safe_load(base("Secret")["stringData"]["keys.yaml"]) == {"keys": []}  # so that nobody gets in


def test_the_image_gets_what_its_steps_copy() -> None:
    """And the files of the locks name no place that they came from."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for source in {word for line in copied for word in line.split()}:
        assert source in let_through, source
        assert list(ROOT.glob(source)), source
    for lock in (ROOT / "deploy/locks").glob("*.txt"):
        lines = lock.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if "://" in line or line.startswith("--")], lock.name
        assert all("--hash=sha256:" in line or "==" in line or line.startswith("#") for line in lines), lock.name


def test_the_locks_have_everything_that_the_package_needs() -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    for name, texts in (("server", project["dependencies"]), ("dev", [*project["dependencies"], *extras])):
        lock = (ROOT / f"deploy/locks/{name}.txt").read_text(encoding="utf-8")
        locked: dict[str, list[str]] = {}
        for package, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock, re.MULTILINE):
            locked.setdefault(package, []).append(version)
        for text in texts:
            wanted = Requirement(text)
            versions = locked.get(re.sub(r"[-_.]+", "-", wanted.name).lower(), [])
            assert versions, f"{text} is not in deploy/locks/{name}.txt: make locks"
            assert all(wanted.specifier.contains(version) for version in versions), f"{text}: make locks"


def test_serves_file_has_the_arguments_of_the_application() -> None:
    """Which `llamapool.ray.application.Arguments` is, though it needs Ray: its names are looked up in the source."""
    (served,) = read(ROOT / "deploy/ray/serve.yaml")["applications"]
    assert served["import_path"] == "llamapool.ray:build"
    source = (ROOT / "llamapool/ray/application.py").read_text(encoding="utf-8")
    for name in (*served["args"], *served["args"]["replicas"]):
        assert re.search(rf"^    {name}: ", source, re.MULTILINE), name


DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))


def instruction(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.+)$", joined, re.MULTILINE)


def test_build_arguments_extend_the_cmake_flags() -> None:
    """An argument that replaced them would compile for the build machine's CPU alone."""
    assert 'CMAKE_ARGS=""' in instruction("ARG")
    (flags,) = [line for line in instruction("ENV") if "CMAKE_ARGS" in line]
    for flag in ("-DGGML_NATIVE=off", "-DGGML_BACKEND_DL=on", "-DGGML_CPU_ALL_VARIANTS=on"):
        assert flag in flags
    assert "${CMAKE_ARGS}" in flags


def test_the_workflow_builds_the_cuda_image_as_the_dockerfile_says() -> None:
    images = WORKFLOW["jobs"]["image"]["strategy"]["matrix"]["include"]
    (arguments,) = [each["arguments"] for each in images if each["suffix"]]
    head = re.sub(r'"', "", DOCKERFILE.partition("ARG BUILD_IMAGE")[0])
    for argument in arguments.strip().splitlines():
        assert argument in head
    assert "CMAKE_CUDA_ARCHITECTURES=" in arguments


def test_the_workflow_pins_each_action_by_its_commit() -> None:
    """A tag can be moved to other code. The comment names the version of the commit."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert len(used) >= 10
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_the_archive_names_the_versions_image_in_every_layer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "deploy/kubernetes", source / "deploy/kubernetes")
    shutil.copy(ROOT / "deploy/manifests.sh", source / "deploy")
    command = [str(source / "deploy/manifests.sh"), "registry.example/llamapool", "1.2.3"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with tarfile.open(source / "dist/llamapool-kubernetes-1.2.3.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    made = tmp_path / "llamapool-kubernetes-1.2.3"
    read = {name: yaml.safe_load((made / name / "kustomization.yaml").read_text()) for name in ("base", "gpu")}
    base = {"name": "llamapool", "newName": "registry.example/llamapool", "newTag": "1.2.3"}
    assert read["base"]["images"] == [base]
    assert read["gpu"]["images"] == [{"name": "registry.example/llamapool", "newTag": "1.2.3-cuda"}]
