"""`llamapool.ray` on a real Ray cluster of one machine, with replicas of the demo model. ``make ray`` runs this."""

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs llamapool[ray]: make ray")

from tests.support.ray_cluster import RayCluster
from tests.support.real_server import ROOT, Reply
from tests.support.waiting import wait_until

MODEL = str(ROOT / "models" / "demo.gguf")
FLAGS = ["-m", MODEL, "-a", "demo", "-t", "1", "-np", "4", "-c", "8192", "--slots", "--metrics"]
REPLICA = "x-llamapool-replica"
DEADLINE_S = 180.0
MODELS = ("demo", "other")
SEVERAL = """
models:
  demo: {path: %(model)s, n_ctx: 1024, n_threads: 1, load: startup}
  other: {path: %(model)s, n_ctx: 1024, n_threads: 1}
server: {models_max: 1, metrics: true}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    config: Path = tmp_path_factory.mktemp("ray") / "several.yaml"
    config.write_text(SEVERAL % {"model": MODEL})
    scaled = {"least": 1, "most": 2, "requests": 1, "up_after_s": 0}
    applications: dict[str, dict[str, Any]] = {
        "": {"flags": FLAGS, "replicas": 2},
        "several": {"flags": ["--config", str(config)], "replicas": 2},
        "scaled": {"flags": FLAGS, "replicas": scaled},
    }
    with RayCluster(applications) as started:
        yield started


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


def replica_ids(cluster: RayCluster, route: str = "") -> set[str]:
    return {cluster.request("GET", f"{route}/v1/models").headers[REPLICA] for _ in range(12)}


@pytest.fixture
def both_replicas(cluster: RayCluster) -> set[str]:
    """Wait until both replicas have loaded the model. Returns their ids."""
    wait_until(lambda: len(replica_ids(cluster)) == 2, "two replicas answer")
    found = replica_ids(cluster)
    for replica in found:
        wait_until(lambda r=replica: health(cluster, r).status == 200, "its model is loaded")  # type: ignore[misc]
    return found


def health(cluster: RayCluster, replica: str) -> Reply:
    return cluster.request("GET", "/health", headers={REPLICA: replica})


def test_streams_of_each_api_are_forwarded(cluster: RayCluster, both_replicas: set[str]) -> None:
    events = cluster.events("/v1/chat/completions", chat("Hello", stream=True))
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events[:-1])
    body = chat("Hello", stream=True)
    assert any('"message_stop"' in event for event in cluster.events("/v1/messages", body))
    body = {"model": "demo", "input": "Hello", "max_output_tokens": 8, "stream": True}
    assert any(
        '"response.incomplete"' in e or '"response.completed"' in e for e in cluster.events("/v1/responses", body)
    )
    lines = cluster.request("POST", "/api/chat", chat("Hello", stream=True)).body.splitlines()
    assert json.loads(lines[-1])["done"]
    assert cluster.post("/v1/chat/completions", chat("Hello"))["choices"][0]["message"]["content"]


def test_errors_of_the_server_are_forwarded(cluster: RayCluster, both_replicas: set[str]) -> None:
    assert cluster.request("POST", "/v1/chat/completions", b"{bad").status == 400
    refused = cluster.request("POST", "/v1/messages", chat("Hello", temperature="warm"))
    assert refused.status == 400
    assert refused.json()["type"] == "error"
    assert cluster.request("GET", "/nowhere").status == 404


def test_metrics_need_the_header_that_names_a_replica(cluster: RayCluster, both_replicas: set[str]) -> None:
    assert cluster.request("GET", "/metrics").status == 400
    for replica in both_replicas:
        reply = cluster.request("GET", "/metrics", headers={REPLICA: replica})
        assert reply.status == 200
        assert reply.headers[REPLICA] == replica
        assert b"llamapool_server_requests_running" in reply.body


def test_requests_with_a_common_prefix_go_to_one_replica(cluster: RayCluster, both_replicas: set[str]) -> None:
    used = set()
    for topic in range(6):
        system = f"You know all about number {topic}. " * 40
        messages: list[dict[str, str]] = [{"role": "system", "content": system}]
        topic_replicas = set()
        for turn in range(3):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            reply = cluster.request("POST", "/v1/chat/completions", chat("", messages=messages))
            topic_replicas.add(reply.headers[REPLICA])
            usage = reply.json()["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 100) == (turn > 0)
            messages.append(reply.json()["choices"][0]["message"])
        assert len(topic_replicas) == 1
        used |= topic_replicas
    assert used == both_replicas


def test_disconnect_frees_the_slot(cluster: RayCluster, both_replicas: set[str]) -> None:
    with cluster.open_stream("/v1/chat/completions", chat("Count", max_tokens=6000, ignore_eos=True)) as response:
        replica = response.getheader(REPLICA)
        assert replica
        assert n_busy(cluster, replica) == 1
    wait_until(lambda: n_busy(cluster, replica) == 0, "the slot is free")


def n_busy(cluster: RayCluster, replica: str) -> int:
    slots = cluster.request("GET", "/slots", headers={REPLICA: replica}).json()
    return sum(slot["is_processing"] for slot in slots)


@dataclass
class Stream:
    """The stream of one client, which `read` reads in a thread of its own."""

    cluster: RayCluster
    text: str
    replica: str = ""
    n_events: int = 0
    error: dict[str, Any] | None = None
    done: bool = False
    started: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        connection = http.client.HTTPConnection(self.cluster.host, self.cluster.port, timeout=DEADLINE_S)
        body = chat(self.text, stream=True, max_tokens=1500, ignore_eos=True)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.replica = response.getheader(REPLICA) or ""
        for line in response:
            if line.startswith(b"data: [DONE]"):
                self.done = True
            elif line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                self.error = event.get("error", self.error)
                self.n_events += 1
                self.started.set()
        connection.close()


def test_killed_replica_fails_only_its_own_streams(cluster: RayCluster, both_replicas: set[str]) -> None:
    streams = [Stream(cluster, f"{n} " * 200) for n in range(6)]
    threads = [threading.Thread(target=stream.read) for stream in streams]
    for thread in threads:
        thread.start()
    for stream in streams:
        assert stream.started.wait(DEADLINE_S)
    assert {stream.replica for stream in streams} == both_replicas
    victim = min(streams, key=lambda stream: stream.n_events).replica  # its streams have most tokens left
    cluster.kill(victim)
    after = cluster.request("POST", "/v1/chat/completions", chat("Are you there?"))
    assert after.status == 200  # even if it was sent to the killed replica first
    for thread in threads:
        thread.join(DEADLINE_S)
    for stream in streams:
        if stream.replica == victim:
            assert stream.done != (stream.error is not None)  # a stream may have finished before the kill
            assert stream.error is None or stream.error["code"] == "service_unavailable"
        else:
            assert stream.done, stream.error
            assert stream.error is None
    assert any(stream.error for stream in streams)
    wait_until(lambda: len(replica_ids(cluster)) == 2, "a new replica replaces it")
    assert victim not in replica_ids(cluster)


def test_requests_go_to_the_replica_that_has_the_model_in_memory(cluster: RayCluster) -> None:
    wait_until(lambda: len(replica_ids(cluster, "/several")) == 2, "two replicas answer")
    both = replica_ids(cluster, "/several")
    for replica in both:
        wait_until(lambda r=replica: loaded_models(cluster, r) == {"demo"}, "its model is loaded")  # type: ignore[misc]
    placements: list[dict[str, str]] = [{}]

    def is_settled() -> bool:
        """Return whether each model had its own replica twice in a row, so that the front knows the loaded models."""
        replies = {m: cluster.request("POST", "/several/v1/chat/completions", chat("Hi", model=m)) for m in MODELS}
        placements.append({model: reply.headers[REPLICA] for model, reply in replies.items()})
        return placements[-1] == placements[-2] and set(placements[-1].values()) == both

    wait_until(is_settled, "each model has its replica")
    for model in MODELS * 4:
        reply = cluster.request("POST", "/several/v1/chat/completions", chat(f"Hello, {model}", model=model))
        assert reply.headers[REPLICA] == placements[-1][model]
    for model, replica in placements[-1].items():
        assert loaded_models(cluster, replica) == {model}


def loaded_models(cluster: RayCluster, replica: str) -> set[str]:
    models = cluster.request("GET", "/several/models", headers={REPLICA: replica}).json()["data"]
    return {model["id"] for model in models if model["status"]["value"] == "loaded"}


def test_more_requests_start_more_replicas(cluster: RayCluster) -> None:
    assert len(replica_ids(cluster, "/scaled")) == 1
    stop = threading.Event()

    def send_requests() -> None:
        while not stop.is_set():
            cluster.request("POST", "/scaled/v1/chat/completions", chat("Count", max_tokens=500, ignore_eos=True))

    threads = [threading.Thread(target=send_requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(replica_ids(cluster, "/scaled")) == 2, "a second replica")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
