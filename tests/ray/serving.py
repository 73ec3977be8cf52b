"""`llamapool.ray` on a real Ray cluster of one machine: two replicas of the demo model. Run by ``make ray``."""

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


def replicas(cluster: RayCluster, route: str = "") -> set[str]:
    return {cluster.request("GET", f"{route}/v1/models").headers[REPLICA] for _ in range(12)}


@pytest.fixture
def two(cluster: RayCluster) -> set[str]:
    """Both replicas, with the model in memory."""
    wait_until(lambda: len(replicas(cluster)) == 2, "two replicas answer")
    both = replicas(cluster)
    for replica in both:
        wait_until(lambda r=replica: health(cluster, r).status == 200, "its model is loaded")  # type: ignore[misc]
    return both


def health(cluster: RayCluster, replica: str) -> Reply:
    return cluster.request("GET", "/health", headers={REPLICA: replica})


def test_every_api_streams_through(cluster: RayCluster, two: set[str]) -> None:
    events = cluster.events("/v1/chat/completions", chat("Hello", stream=True))
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events[:-1])
    body = chat("Hello", stream=True)
    assert any('"message_stop"' in event for event in cluster.events("/v1/messages", body))
    said = {"model": "demo", "input": "Hello", "max_output_tokens": 8, "stream": True}
    assert any(
        '"response.incomplete"' in e or '"response.completed"' in e for e in cluster.events("/v1/responses", said)
    )
    lines = cluster.request("POST", "/api/chat", chat("Hello", stream=True)).body.splitlines()
    assert json.loads(lines[-1])["done"]
    assert cluster.post("/v1/chat/completions", chat("Hello"))["choices"][0]["message"]["content"]


def test_errors_are_the_servers_own(cluster: RayCluster, two: set[str]) -> None:
    assert cluster.request("POST", "/v1/chat/completions", b"{bad").status == 400
    refused = cluster.request("POST", "/v1/messages", chat("Hello", temperature="warm"))
    assert refused.status == 400
    assert refused.json()["type"] == "error"
    assert cluster.request("GET", "/nowhere").status == 404


def test_what_is_about_one_replica_names_it(cluster: RayCluster, two: set[str]) -> None:
    assert cluster.request("GET", "/metrics").status == 400
    for replica in two:
        reply = cluster.request("GET", "/metrics", headers={REPLICA: replica})
        assert reply.status == 200
        assert reply.headers[REPLICA] == replica
        assert b"llamapool_server_requests_running" in reply.body


def test_what_begins_alike_goes_to_one_replica(cluster: RayCluster, two: set[str]) -> None:
    seen = set()
    for topic in range(6):
        system = f"You know all about number {topic}. " * 40
        messages: list[dict[str, str]] = [{"role": "system", "content": system}]
        asked = set()
        for turn in range(3):
            messages.append({"role": "user", "content": f"Question {turn}?"})
            reply = cluster.request("POST", "/v1/chat/completions", chat("", messages=messages))
            asked.add(reply.headers[REPLICA])
            usage = reply.json()["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 100) == (turn > 0)
            messages.append(reply.json()["choices"][0]["message"])
        assert len(asked) == 1
        seen |= asked
    assert seen == two


def test_a_client_that_leaves_frees_its_slot(cluster: RayCluster, two: set[str]) -> None:
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
    """One client's stream, read by a thread of its own."""

    cluster: RayCluster
    text: str
    replica: str = ""
    n_events: int = 0
    error: dict[str, Any] | None = None
    done: bool = False
    begun: threading.Event = field(default_factory=threading.Event)

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
                self.begun.set()
        connection.close()


def test_a_killed_replica_ends_its_own_streams_only(cluster: RayCluster, two: set[str]) -> None:
    streams = [Stream(cluster, f"{n} " * 200) for n in range(6)]
    threads = [threading.Thread(target=stream.read) for stream in streams]
    for thread in threads:
        thread.start()
    for stream in streams:
        assert stream.begun.wait(DEADLINE_S)
    assert {stream.replica for stream in streams} == two
    victim = min(streams, key=lambda stream: stream.n_events).replica  # has most left to say
    cluster.kill(victim)
    after = cluster.request("POST", "/v1/chat/completions", chat("Are you there?"))
    assert after.status == 200  # also where it was sent to the one that has just ended
    for thread in threads:
        thread.join(DEADLINE_S)
    for stream in streams:
        if stream.replica == victim:
            assert stream.done != (stream.error is not None)  # one may have ended before
            assert stream.error is None or stream.error["code"] == "service_unavailable"
        else:
            assert stream.done, stream.error
            assert stream.error is None
    assert any(stream.error for stream in streams)
    wait_until(lambda: len(replicas(cluster)) == 2, "another replica takes its place")
    assert victim not in replicas(cluster)


def test_each_model_stays_where_it_is_in_memory(cluster: RayCluster) -> None:
    wait_until(lambda: len(replicas(cluster, "/several")) == 2, "two replicas answer")
    both = replicas(cluster, "/several")
    for replica in both:
        wait_until(lambda r=replica: loaded(cluster, r) == {"demo"}, "its model is loaded")  # type: ignore[misc]
    where: list[dict[str, str]] = [{}]

    def settled() -> bool:
        """Each model has a replica of its own, twice in a row: the front has heard what they have loaded."""
        replies = {m: cluster.request("POST", "/several/v1/chat/completions", chat("Hi", model=m)) for m in MODELS}
        where.append({model: reply.headers[REPLICA] for model, reply in replies.items()})
        return where[-1] == where[-2] and set(where[-1].values()) == both

    wait_until(settled, "each model has its replica")
    for model in MODELS * 4:
        reply = cluster.request("POST", "/several/v1/chat/completions", chat(f"Hello, {model}", model=model))
        assert reply.headers[REPLICA] == where[-1][model]
    for model, replica in where[-1].items():
        assert loaded(cluster, replica) == {model}


def loaded(cluster: RayCluster, replica: str) -> set[str]:
    models = cluster.request("GET", "/several/models", headers={REPLICA: replica}).json()["data"]
    return {model["id"] for model in models if model["status"]["value"] == "loaded"}


def test_more_replicas_come_with_more_requests(cluster: RayCluster) -> None:
    assert len(replicas(cluster, "/scaled")) == 1
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            cluster.request("POST", "/scaled/v1/chat/completions", chat("Count", max_tokens=500, ignore_eos=True))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(replicas(cluster, "/scaled")) == 2, "a second replica")
    finally:
        ends.set()
        for thread in threads:
            thread.join()
