"""Run a Pod's only container with podman, as a kubelet and its runtime would.

``podman kube play`` 4.3 (Debian 12) crashes on a Secret's volume and does not decode a Secret's ``data``. It refuses
``ports`` in the host's network, and has no probes without systemd. So `run_flags` converts a Pod's specification to
flags of ``podman run``. It supports every field that our manifests use, and raises an error on any other field.
"""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.kubelet import service_links, write_volume
from tests.support.waiting import wait_until

Manifest = Mapping[str, Any]
IGNORED = {  # fields for the scheduler, the registry, or a cluster's API, and those that `Pod` implements
    *("serviceAccountName", "tolerations", "imagePullPolicy", "name", "ports", "fsGroupChangePolicy"),
    *("terminationGracePeriodSeconds", "lifecycle", "startupProbe", "readinessProbe", "livenessProbe"),
}


class Podman:
    """podman with its own store, in the caller's network namespace."""

    def __init__(self, store: Path, runroot: Path, folder: Path) -> None:
        """Write podman's configuration into `folder`. `store` contains the image, `runroot` is its run root."""
        storage, containers = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(f'[storage]\ndriver="vfs"\ngraphroot="{store}"\nrunroot="{runroot}"\n')
        containers.write_text(  # not crun, which fails on hybrid cgroups
            '[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
            '[containers]\nnetns="host"\ndefault_ulimits=["nofile=1024:1024","nproc=4096:4096"]\n'
        )
        self.folder = folder
        self.environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(containers)}

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run a podman command and return its standard output. Raises AssertionError with its standard error."""
        return self.run(["podman", *arguments], check=check)

    def run(self, command: Sequence[str], *, check: bool = True, **environment: str) -> str:
        """Run any command in podman's environment and return its standard output."""
        env = {**self.environment, **environment}
        # conmon writes a file `oom` into its working directory.
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def state(self, container: str) -> Manifest:
        """Return the state of a container from ``podman inspect``, e.g. Running, ExitCode, Pid."""
        state: Manifest = json.loads(self("inspect", "--type", "container", container))[0]["State"]
        return state


def only(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """Return the manifest of `kind` that is named llamapool, otherwise the only one of that kind."""
    found = [each for each in manifests if each["kind"] == kind]
    return next((each for each in found if each["metadata"]["name"] == "llamapool"), found[0])


def files_of(manifest: Manifest) -> dict[str, str]:
    """Return the files of a ConfigMap, or of a Secret with its ``data`` decoded."""
    if manifest["kind"] == "ConfigMap":
        return dict(manifest["data"])
    decoded = {name: base64.b64decode(text).decode() for name, text in manifest.get("data", {}).items()}
    return {**decoded, **manifest.get("stringData", {})}


def run_flags(spec: Manifest, environment: Mapping[str, str], folders: Mapping[str, Path]) -> list[str]:
    """Return the flags of ``podman run`` for a Pod's specification, followed by its image.

    The kubelet adds `environment`; `folders` has a folder for each volume. Raises AssertionError on an unknown field.
    """
    (container,) = spec["containers"]
    user = spec["securityContext"]["runAsUser"]
    flags: list[str] = []
    variables = {**environment, **{entry["name"]: entry["value"] for entry in container["env"]}}
    flags += [f"--env={name}={text}" for name, text in variables.items()]
    for level, fields in (("Pod", spec), ("container", container)):
        for name, value in fields.items():
            if name in IGNORED | {"env", "containers", "volumes", "image", "enableServiceLinks"}:
                continue
            match name, value:
                case "automountServiceAccountToken", False:
                    pass  # nothing is mounted
                case "securityContext", dict():
                    flags += _security(value, user)
                case "resources", {"limits": {"memory": str(memory)}}:
                    bytes_ = str(int(memory.removesuffix("Gi")) << 30)
                    flags += [f"--memory={bytes_}", f"--memory-swap={bytes_}"]
                case "volumeMounts", list():
                    flags += [_mount(mount, folders) for mount in value]
                case _:
                    raise AssertionError(f"{level}: no flag of podman for {name}: {value}")
    return [*flags, container["image"]]


def _security(context: Manifest, user: int) -> Iterator[str]:
    for name, value in context.items():
        match name, value:
            case "runAsNonRoot", True:
                assert user != 0
            case "runAsUser", int():
                yield f"--user={value}:{context['runAsGroup']}"
            case "runAsGroup", int():
                pass  # with runAsUser
            case "fsGroup", int():
                yield f"--group-add={value}"
            case "seccompProfile", {"type": "RuntimeDefault"}:
                pass  # podman's default
            case "allowPrivilegeEscalation", False:
                yield "--security-opt=no-new-privileges"
            case "readOnlyRootFilesystem", True:
                yield from ("--read-only", "--read-only-tmpfs=false")
            case "capabilities", {"drop": [*names]}:
                yield from (f"--cap-drop={each}" for each in names)
            case _:
                assert name in IGNORED, f"securityContext: no flag of podman for {name}: {value}"


def _mount(mount: Manifest, folders: Mapping[str, Path]) -> str:
    assert mount.keys() <= {"name", "mountPath", "readOnly"}, mount
    return f"--volume={folders[mount['name']]}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"


@dataclass
class Pod:
    """One Pod of a rendered layer's Deployment. Its methods do what the kubelet does."""

    podman: Podman
    manifests: Sequence[Manifest]
    folder: Path
    image: str = os.environ.get("POD_IMAGE", "localhost/llamapool")
    environment: dict[str, str] = field(default_factory=dict)
    containers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the folders of all volumes. They outlive the container, like a Pod's volumes."""
        self.spec: Manifest = only(self.manifests, "Deployment")["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.folders = {volume["name"]: self.folder / volume["name"] for volume in self.spec["volumes"]}
        for volume in self.spec["volumes"]:
            folder, group = self.folders[volume["name"]], self.spec["securityContext"]["fsGroup"]
            folder.mkdir(parents=True)
            match volume:
                case {"configMap": {"name": _}}:
                    self.project(volume["name"], files_of(only(self.manifests, "ConfigMap")))
                case {"secret": {"secretName": _}}:
                    self.project(volume["name"], files_of(only(self.manifests, "Secret")))
                case {"persistentVolumeClaim": _} | {"emptyDir": _} | {"ephemeral": _}:
                    os.chown(folder, 0, group)
                    folder.chmod(0o2775)
                case _:
                    raise AssertionError(f"no folder for {volume}")

    def project(self, volume: str, files: Mapping[str, str]) -> None:
        """Replace the files of a ConfigMap's or Secret's volume in one step."""
        write_volume(self.folders[volume], files)

    def start(self) -> str:
        """Start a container, with service links unless the specification disables them. Returns its id."""
        links = {}
        if self.spec.get("enableServiceLinks", True):
            links = service_links(only(self.manifests, "Service"), "10.96.0.7")
        flags = run_flags(self.spec, {**links, **self.environment}, self.folders)
        self.containers.append(self.podman("run", "--detach", *flags[:-1], self.image).strip())
        return self.containers[-1]

    @property
    def state(self) -> Manifest:
        return self.podman.state(self.containers[-1])

    @property
    def log(self) -> str:
        return self.podman.run(["sh", "-c", f"podman logs {self.containers[-1]} 2>&1"])

    @property
    def url(self) -> str:
        """The URL of the container's only port, in the test's network."""
        (port,) = self.container["ports"]
        return f"http://127.0.0.1:{port['containerPort']}"

    def probe(self, name: str) -> bool:
        """Send one probe and return whether it succeeds."""
        probe = self.container[name]
        assert probe["httpGet"]["port"] == self.container["ports"][0]["name"]
        try:
            reply = httpx.get(
                self.url + probe["httpGet"]["path"], timeout=probe.get("timeoutSeconds", 1), trust_env=False
            )
        except httpx.TransportError:
            return False
        return 200 <= reply.status_code < 400

    def wait_until_ready(self) -> None:
        """Probe until the container has started and is ready. Raises AssertionError with the log if it ends."""
        for name in ("startupProbe", "readinessProbe"):
            wait_until(lambda name=name: self.probe(name) or self._ended(), name)  # type: ignore[misc]
        assert self.state["Running"], self.log

    def _ended(self) -> bool:
        assert self.state["Running"], self.log
        return False

    def wait_until_ended(self) -> Manifest:
        """Wait for the newest container's end and return its state."""
        wait_until(lambda: not self.state["Running"], "the container's end")
        return self.state

    def terminate(self, before_sigterm: Callable[[], object]) -> tuple[float, Manifest]:
        """End the Pod as the kubelet does: `preStop`, SIGTERM, and SIGKILL after the grace period, which is a failure.

        `before_sigterm` is called after `preStop`. Returns when SIGTERM was sent (`time.monotonic`) and the last state.
        """
        deadline = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        pid = self.state["Pid"]
        time.sleep(self.container["lifecycle"]["preStop"]["sleep"]["seconds"])
        before_sigterm()
        os.kill(pid, signal.SIGTERM)
        signalled = time.monotonic()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the container's first process")
        assert time.monotonic() < deadline, "the kubelet would have sent SIGKILL"
        return signalled, self.wait_until_ended()

    def remove(self) -> None:
        for each in self.containers:
            self.podman("rm", "--force", "--time=0", each)
