"""Run the image and the manifests in a container runtime, with the test as the kubelet. ``make pod`` runs this.

It needs root, podman, and its own network namespace, so that all ports are free (``unshare --net``). The variables
``KUBECTL`` and ``PODMAN_COMPOSE`` name programs; ``POD_STORE`` contains the image, with the run root ``POD_RUNROOT``.
docs/kubernetes.md lists the checks.
"""

import base64
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from server.transport.keys import add_entry, hash_of, new_key
from tests.media_files import wav
from tests.pod.podman import Manifest, Pod, Podman, only
from tests.support.fake_hub import fake_hub
from tests.support.kustomize import render
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {path.parent.name: path.parent for path in sorted(ROOT.glob("deploy/kubernetes/*/kustomization.yaml"))}
KEYS_FILE = "keys.yaml"
HELLO: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}
MODELS = "/opt/venv/share/llamapool/models"
PROBE_SCRIPT = Path(__file__).with_name("rights.py").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return Podman(Path(os.environ["POD_STORE"]), Path(os.environ["POD_RUNROOT"]), tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def key() -> str:
    return new_key()


def kustomize(layer: str) -> list[Manifest]:
    """Return the manifests of a layer as ``kubectl kustomize`` renders them."""
    done = subprocess.run(
        [os.environ["KUBECTL"], "kustomize", str(LAYERS[layer])], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def render_layer(layer: str, keys: Mapping[str, str]) -> list[Manifest]:
    """Return a layer's manifests with the Secret that ``kubectl create secret`` would create from `keys`."""
    manifests = kustomize(layer)
    secret = only(manifests, "Secret")
    data = {name: base64.b64encode(text.encode()).decode() for name, text in keys.items()}
    manifests[manifests.index(secret)] = {"kind": "Secret", "metadata": secret["metadata"], "data": data}
    return manifests


def key_file(folder: Path, *keys: str) -> dict[str, str]:
    """Return the Secret's only file as ``llamapool keys add`` writes it."""
    file = folder / KEYS_FILE
    file.unlink(missing_ok=True)
    for number, each in enumerate(keys):
        scopes = ["infer", "models", "metrics"]
        add_entry(file, {"name": f"key-{number}", "hash": hash_of(each), "scopes": scopes})
    return {KEYS_FILE: file.read_text(encoding="utf-8") if keys else "keys: []\n"}


@pytest.fixture
def base(podman: Podman, key: str, tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(podman, render_layer("base", key_file(tmp_path, key)), tmp_path / "volumes")
    try:
        yield pod
    finally:
        pod.remove()


def client(pod: Pod, key: str) -> httpx.Client:
    return httpx.Client(base_url=pod.url, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False)


def config_files(pod: Pod, **models: Mapping[str, Any]) -> dict[str, str]:
    config = yaml.safe_load(only(pod.manifests, "ConfigMap")["data"]["config.yaml"])
    return {"config.yaml": yaml.safe_dump({**config, "models": {**config["models"], **models}})}


def noise(n_bytes: int) -> bytes:
    """Return a WAV file of noise of about `n_bytes`: 48 kHz, two channels, 32 bits."""
    return wav(random.Random(0).randbytes(n_bytes // 8 * 8), 48_000, 2, 4)


def by_name(manifests: Sequence[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


@pytest.mark.parametrize("layer", LAYERS)
def test_kustomize_renderer_of_other_tests_agrees_with_kubectl(layer: str) -> None:
    assert by_name(render(LAYERS[layer])) == by_name(kustomize(layer))


@pytest.mark.parametrize("layer", LAYERS)
def test_pod_of_each_layer_starts_with_few_rights_and_needs_a_key(
    layer: str, podman: Podman, key: str, tmp_path: Path
) -> None:
    """The layer ``gpu`` is tested without its GPU."""
    pod = Pod(podman, render_layer(layer, key_file(tmp_path, key)), tmp_path / "volumes")
    try:
        pod.start()
        pod.wait_until_ready()
        assert pod.probe("livenessProbe")
        found = json.loads(podman("exec", pod.containers[-1], "python3", "-c", PROBE_SCRIPT))
        limit = int(pod.container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        assert found == {
            **{"uid": 10001, "gid": 10001, "capabilities": 0, "no_new_privileges": "1"},
            **{"writable": ["/tmp", "/models"], "memory": str(limit), "links": []},
        }
        with client(pod, key) as http:
            assert http.post("/v1/chat/completions", json=HELLO).json()["usage"]["completion_tokens"] > 0
            refused = http.post("/v1/chat/completions", json=HELLO, headers={"Authorization": "Bearer wrong"})
            assert refused.status_code == 401
    finally:
        pod.remove()


def test_service_links_do_not_stop_the_server(base: Pod) -> None:
    """Kubernetes adds these variables by default. Their names look like settings of the server."""
    base.spec = {**base.spec, "enableServiceLinks": True}
    base.start()
    base.wait_until_ready()
    environment = base.podman("exec", base.containers[-1], "env")
    assert "LLAMAPOOL_PORT=tcp://10.96.0.7:80\n" in environment


def test_changed_volumes_are_reloaded_while_the_pod_runs(base: Pod, key: str, tmp_path: Path) -> None:
    """A changed ConfigMap adds audio support to the model, and a changed Secret replaces the key."""
    base.start()
    base.wait_until_ready()
    other = new_key()
    with client(base, key) as http:
        files = {"file": ("noise.wav", noise(3 << 20))}
        refused = http.post("/v1/audio/transcriptions", files=files)
        assert (refused.status_code, "does not support audio" in refused.text) == (501, True)

        (models,) = [yaml.safe_load(only(base.manifests, "ConfigMap")["data"]["config.yaml"])["models"]]
        base.project("config", config_files(base, demo={**models["demo"], "mmproj": f"{MODELS}/mmproj-demo.gguf"}))
        replies: list[httpx.Response] = []

        def transcribes() -> bool:
            replies.append(http.post("/v1/audio/transcriptions", files=files, data={"temperature": 0}))
            return replies[-1].status_code == 200

        wait_until(transcribes, "the reload of the configuration")
        assert isinstance(replies[-1].json()["text"], str)
        assert {reply.status_code for reply in replies} <= {200, 501, 503}  # 503: while the model is loaded again

        base.project("keys", key_file(tmp_path, other))
        wait_until(lambda: http.get("/v1/models").status_code == 401, "the end of the old key")
    with client(base, other) as http:
        assert http.get("/v1/models").status_code == 200
    assert base.probe("readinessProbe")


def test_streams_are_completed_when_the_pod_is_deleted(base: Pod, key: str) -> None:
    """New requests are answered until SIGTERM, running streams until their end. The exit status is 0."""
    base.start()
    base.wait_until_ready()
    events: list[list[tuple[float, str]]] = [[], [], [], []]
    started = threading.Semaphore(0)
    # Longer than it takes to start four streams on a busy machine, and shorter than `drain_s`.
    body = {**HELLO, "max_tokens": 1000, "ignore_eos": True, "stream": True}

    def read(http: httpx.Client, received: list[tuple[float, str]]) -> None:
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    received.append((time.monotonic(), line.removeprefix("data: ")))
                    if len(received) == 1:
                        started.release()

    with client(base, key) as http:  # one client for all, because creating one takes longer than a short stream
        readers = [threading.Thread(target=read, args=(http, received), daemon=True) for received in events]

        def before_sigterm() -> None:
            assert http.post("/v1/chat/completions", json=HELLO).status_code == 200
            for reader in readers:
                reader.start()
            for _ in readers:
                assert started.acquire(timeout=60)

        signalled, state = base.terminate(before_sigterm)
        for reader in readers:
            reader.join(60)
    assert state["ExitCode"] == 0, base.log
    for stream in events:
        assert stream[-1][1] == "[DONE]"
        chunks = [json.loads(text) for _, text in stream[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert stream[-1][0] > signalled


def test_pod_restarts_with_its_caches_after_an_out_of_memory_kill(base: Pod, key: str) -> None:
    """The volume of models has cached states and the downloaded model. The hub is not available after the restart."""
    long = {**HELLO, "model": "cached", "messages": [{"role": "user", "content": "Count: " + "one two three " * 200}]}
    with fake_hub() as hub:
        hub.repositories = {"acme/tiny": {"tiny-Q8_0.gguf": (ROOT / "models/demo.gguf").read_bytes()}}
        base.environment = {"MODEL_ENDPOINT": hub.url}
        cached = {"cache_disk": 256, "cache_disk_path": "/models/states", "n_ctx": 8192}
        base.project("config", config_files(base, cached={"hf": "acme/tiny", **cached}))
        base.start()
        base.wait_until_ready()
        with client(base, key) as http:
            assert cached_tokens(http, long) == 0
            # The unload writes the cached states to disk.
            assert http.post("/models/unload", json={"model": "cached"}).status_code == 200
            wait_until((base.folders["models"] / "states").exists, "the folder of states")
            wait_until(lambda: status(http, "cached") == "unloaded", "the unload")
    n_killed = out_of_memory_kills()
    for pid in base.podman("top", base.containers[-1], "hpid").split()[1:]:
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # the kernel must kill the server, not the program below
    hog = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    base.podman("exec", base.containers[-1], "python3", "-c", hog, check=False)
    assert base.wait_until_ended()["ExitCode"] == 137
    assert out_of_memory_kills() > n_killed  # podman's own OOMKilled is false here with cgroups v1

    assert base.spec.get("restartPolicy", "Always") == "Always"
    base.start()
    base.wait_until_ready()
    with client(base, key) as http:
        assert cached_tokens(http, long) > 400


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed because memory ran out, in all cgroups."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines())
    return int(counters["oom_kill"])


def cached_tokens(http: httpx.Client, body: Mapping[str, Any]) -> int:
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def status(http: httpx.Client, model: str) -> str:
    (found,) = [each for each in http.get("/models").json()["data"] if each["id"] == model]
    return str(found["status"]["value"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy docker-compose.yml and its models, and add a file that uses the host's network."""
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copytree(
        ROOT / "models", tmp_path / "models", ignore=lambda _, names: [n for n in names if "demo." not in n]
    )
    service = {"network_mode": "host", "environment": {"LLAMA_ARG_MMPROJ": "/models/mmproj-demo.gguf"}}
    (tmp_path / "host.yml").write_text(yaml.safe_dump({"services": {"llamapool": service}}), encoding="utf-8")
    return tmp_path


def test_compose_service_serves_and_stops(podman: Podman, project: Path) -> None:
    """It needs a key, accepts 3 MB with a read-only root, passes its health check, and exits with 0."""
    compose = [os.environ["PODMAN_COMPOSE"], "-f", str(project / "docker-compose.yml"), "-f", str(project / "host.yml")]
    without_key = subprocess.run(
        [*compose, "up", "--no-build", "--detach"], env=podman.environment, capture_output=True, text=True, check=False
    )
    assert (without_key.returncode != 0, "LLAMA_API_KEY" in without_key.stderr) == (True, True)
    podman.run([*compose, "up", "--no-build", "--detach"], LLAMA_API_KEY="sk-compose")
    (container,) = podman("ps", "--all", "--quiet", "--filter", "name=llamapool").split()
    try:
        url = "http://127.0.0.1:8080"
        wait_until(lambda: healthy(url), "health")
        podman("healthcheck", "run", container)
        headers = {"Authorization": "Bearer sk-compose"}
        with httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as http:
            assert http.post("/v1/chat/completions", json=HELLO).status_code == 200
            files = {"file": ("noise.wav", noise(3 << 20))}
            transcribed = http.post("/v1/audio/transcriptions", files=files, data={"temperature": 0})
            assert transcribed.status_code == 200, transcribed.text
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        podman("exec", container, "python3", "-c", "open('/tmp/probe', 'w')")
        podman.run([*compose, "stop"], LLAMA_API_KEY="sk-compose")
        assert podman.state(container)["ExitCode"] == 0
    finally:
        podman("rm", "--force", "--time=0", container)


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The unit starts another program here, because llamapool is not installed in /opt."""
    text = (ROOT / "deploy/systemd/llamapool.service").read_text(encoding="utf-8")
    unit = tmp_path / "llamapool.service"
    unit.write_text(text.replace("/opt/llamapool/bin/llamapool", sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "llamapool.service" in line] == []
