"""Run the image and the manifests in a container runtime, with the test as the kubelet. ``make pod`` runs this.

It needs root, podman, and a network of its own, whose ports are free (``unshare --net``). Variables name what it uses:
``KUBECTL`` and ``PODMAN_COMPOSE`` are programs; ``POD_STORE`` contains the image, with the run root ``POD_RUNROOT``.
docs/kubernetes.md says what is checked.
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
from tests.support.kustomize import render
from tests.support.stand_in_hub import stand_in_hub
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {path.parent.name: path.parent for path in sorted(ROOT.glob("deploy/kubernetes/*/kustomization.yaml"))}
KEYS_FILE = "keys.yaml"
HELLO: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "temperature": 0}
MODELS = "/opt/venv/share/llamapool/models"
INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return Podman(Path(os.environ["POD_STORE"]), Path(os.environ["POD_RUNROOT"]), tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def key() -> str:
    return new_key()


def kustomized(layer: str) -> list[Manifest]:
    """Return what ``kubectl kustomize`` makes of a layer."""
    done = subprocess.run(
        [os.environ["KUBECTL"], "kustomize", str(LAYERS[layer])], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def rendered(layer: str, keys: Mapping[str, str]) -> list[Manifest]:
    """Return a layer's manifests, with a Secret as ``kubectl create secret`` writes it."""
    manifests = kustomized(layer)
    secret = only(manifests, "Secret")
    data = {name: base64.b64encode(text.encode()).decode() for name, text in keys.items()}
    manifests[manifests.index(secret)] = {"kind": "Secret", "metadata": secret["metadata"], "data": data}
    return manifests


def key_file(folder: Path, *keys: str) -> dict[str, str]:
    """Return the Secret's only file, which ``llamapool keys add`` would write."""
    file = folder / KEYS_FILE
    file.unlink(missing_ok=True)
    for number, each in enumerate(keys):
        scopes = ["infer", "models", "metrics"]
        add_entry(file, {"name": f"key-{number}", "hash": hash_of(each), "scopes": scopes})
    return {KEYS_FILE: file.read_text(encoding="utf-8") if keys else "keys: []\n"}


@pytest.fixture
def base(podman: Podman, key: str, tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(podman, rendered("base", key_file(tmp_path, key)), tmp_path / "volumes")
    try:
        yield pod
    finally:
        pod.remove()


def client(pod: Pod, key: str) -> httpx.Client:
    return httpx.Client(base_url=pod.url, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False)


def configured(pod: Pod, **models: Mapping[str, Any]) -> dict[str, str]:
    config = yaml.safe_load(only(pod.manifests, "ConfigMap")["data"]["config.yaml"])
    return {"config.yaml": yaml.safe_dump({**config, "models": {**config["models"], **models}})}


def sound(n_bytes: int) -> bytes:
    """Return a WAV file of noise of about that size: 48 kHz, two channels of 32 bits."""
    return wav(random.Random(0).randbytes(n_bytes // 8 * 8), 48_000, 2, 4)


def named(manifests: Sequence[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests}


@pytest.mark.parametrize("layer", LAYERS)
def test_the_renderer_of_other_tests_agrees_with_kubectl(layer: str) -> None:
    assert named(render(LAYERS[layer])) == named(kustomized(layer))


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layers_pod_starts_confined_and_answers_with_a_key_only(
    layer: str, podman: Podman, key: str, tmp_path: Path
) -> None:
    """Of the layer ``gpu`` everything but the GPU."""
    pod = Pod(podman, rendered(layer, key_file(tmp_path, key)), tmp_path / "volumes")
    try:
        pod.start()
        pod.wait_until_ready()
        assert pod.probe("livenessProbe")
        found = json.loads(podman("exec", pod.containers[-1], "python3", "-c", INSIDE))
        limit = int(pod.container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        assert found == {
            **{"uid": 10001, "gid": 10001, "capabilities": 0, "no_new_privileges": "1"},
            **{"writable": ["/tmp", "/models"], "memory": str(limit), "links": []},
        }
        with client(pod, key) as asking:
            assert asking.post("/v1/chat/completions", json=HELLO).json()["usage"]["completion_tokens"] > 0
            refused = asking.post("/v1/chat/completions", json=HELLO, headers={"Authorization": "Bearer wrong"})
            assert refused.status_code == 401
    finally:
        pod.remove()


def test_service_links_do_not_stop_the_server(base: Pod) -> None:
    """They come with ``enableServiceLinks``, which is true where a manifest does not mention it."""
    base.spec = {**base.spec, "enableServiceLinks": True}
    base.start()
    base.wait_until_ready()
    environment = base.podman("exec", base.containers[-1], "env")
    assert "LLAMAPOOL_PORT=tcp://10.96.0.7:80\n" in environment


def test_changed_volumes_are_read_while_the_pod_runs(base: Pod, key: str, tmp_path: Path) -> None:
    """A ConfigMap adds ears to the model, with which it transcribes 3 MB; a Secret replaces a key."""
    base.start()
    base.wait_until_ready()
    other = new_key()
    with client(base, key) as asking:
        files = {"file": ("noise.wav", sound(3 << 20))}
        deaf = asking.post("/v1/audio/transcriptions", files=files)
        assert (deaf.status_code, "does not support audio" in deaf.text) == (501, True)

        (models,) = [yaml.safe_load(only(base.manifests, "ConfigMap")["data"]["config.yaml"])["models"]]
        base.project("config", configured(base, demo={**models["demo"], "mmproj": f"{MODELS}/mmproj-demo.gguf"}))
        found: list[httpx.Response] = []

        def hears() -> bool:
            found.append(asking.post("/v1/audio/transcriptions", files=files, data={"temperature": 0}))
            return found[-1].status_code == 200

        wait_until(hears, "the reload of the configuration")
        assert isinstance(found[-1].json()["text"], str)
        assert {reply.status_code for reply in found} <= {200, 501, 503}  # 503: while the model is loaded again

        base.project("keys", key_file(tmp_path, other))
        wait_until(lambda: asking.get("/v1/models").status_code == 401, "the end of the old key")
    with client(base, other) as asking:
        assert asking.get("/v1/models").status_code == 200
    assert base.probe("readinessProbe")


def test_streams_end_complete_when_the_pod_is_deleted(base: Pod, key: str) -> None:
    """New requests are answered after `preStop`. Streams that run at SIGTERM go on, and the container ends with 0."""
    base.start()
    base.wait_until_ready()
    events: list[list[tuple[float, str]]] = [[], [], [], []]
    begun = threading.Semaphore(0)
    # Longer than it takes to start four streams on a busy machine, and shorter than `drain_s`.
    body = {**HELLO, "max_tokens": 1000, "ignore_eos": True, "stream": True}

    def read(asking: httpx.Client, into: list[tuple[float, str]]) -> None:
        with asking.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    into.append((time.monotonic(), line.removeprefix("data: ")))
                    if len(into) == 1:
                        begun.release()

    with client(base, key) as asking:  # one for all: making a client takes longer than a short stream
        readers = [threading.Thread(target=read, args=(asking, into), daemon=True) for into in events]

        def before_sigterm() -> None:
            assert asking.post("/v1/chat/completions", json=HELLO).status_code == 200
            for reader in readers:
                reader.start()
            for _ in readers:
                assert begun.acquire(timeout=60)

        signalled, state = base.terminate(before_sigterm)
        for reader in readers:
            reader.join(60)
    assert state["ExitCode"] == 0, base.log
    for each in events:
        assert each[-1][1] == "[DONE]"
        finished = [json.loads(text) for _, text in each[:-1]]
        assert finished[-1]["choices"][0]["finish_reason"] == "length"
        assert each[-1][0] > signalled


def test_a_pod_killed_for_want_of_memory_restarts_and_finds_its_caches(base: Pod, key: str) -> None:
    """Prompt states and a downloaded model are in the volume of models; the hub is gone by then."""
    long = {**HELLO, "model": "cached", "messages": [{"role": "user", "content": "Count: " + "one two three " * 200}]}
    with stand_in_hub() as hub:
        hub.repositories = {"acme/tiny": {"tiny-Q8_0.gguf": (ROOT / "models/demo.gguf").read_bytes()}}
        base.environment = {"MODEL_ENDPOINT": hub.url}
        cached = {"cache_disk": 256, "cache_disk_path": "/models/states", "n_ctx": 8192}
        base.project("config", configured(base, cached={"hf": "acme/tiny", **cached}))
        base.start()
        base.wait_until_ready()
        with client(base, key) as asking:
            assert cached_tokens(asking, long) == 0
            # What is in RAM goes to disk when the model is unloaded.
            assert asking.post("/models/unload", json={"model": "cached"}).status_code == 200
            wait_until((base.folders["models"] / "states").exists, "the folder of states")
            wait_until(lambda: status(asking, "cached") == "unloaded", "the unload")
    n_killed = out_of_memory_kills()
    for pid in base.podman("top", base.containers[-1], "hpid").split()[1:]:
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # the server is to be the victim, not the program below
    hog = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    base.podman("exec", base.containers[-1], "python3", "-c", hog, check=False)
    assert base.wait_until_ended()["ExitCode"] == 137
    assert out_of_memory_kills() > n_killed  # podman's own OOMKilled is false here with cgroups v1

    assert base.spec.get("restartPolicy", "Always") == "Always"
    base.start()
    base.wait_until_ready()
    with client(base, key) as asking:
        assert cached_tokens(asking, long) > 400


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory, in whatever cgroup."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines())
    return int(counters["oom_kill"])


def cached_tokens(asking: httpx.Client, body: Mapping[str, Any]) -> int:
    reply = asking.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def status(asking: httpx.Client, model: str) -> str:
    (found,) = [each for each in asking.get("/models").json()["data"] if each["id"] == model]
    return str(found["status"]["value"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """docker-compose.yml as it is, its models, and the host's network in place of a published port."""
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copytree(
        ROOT / "models", tmp_path / "models", ignore=lambda _, names: [n for n in names if "demo." not in n]
    )
    service = {"network_mode": "host", "environment": {"LLAMA_ARG_MMPROJ": "/models/mmproj-demo.gguf"}}
    (tmp_path / "host.yml").write_text(yaml.safe_dump({"services": {"llamapool": service}}), encoding="utf-8")
    return tmp_path


def test_composes_service_serves_and_ends(podman: Podman, project: Path) -> None:
    """It needs a key, takes 3 MB under a read-only root, passes its health check, and ends with 0."""
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
        with httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as asking:
            assert asking.post("/v1/chat/completions", json=HELLO).status_code == 200
            files = {"file": ("noise.wav", sound(3 << 20))}
            transcribed = asking.post("/v1/audio/transcriptions", files=files, data={"temperature": 0})
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


def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    """The program that it starts is another one, since it is not installed here."""
    text = (ROOT / "deploy/systemd/llamapool.service").read_text(encoding="utf-8")
    unit = tmp_path / "llamapool.service"
    unit.write_text(text.replace("/opt/llamapool/bin/llamapool", sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "llamapool.service" in line] == []
