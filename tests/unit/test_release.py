"""What publishes a version: the Dockerfile's arguments, the release workflow and the archive of manifests."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
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
