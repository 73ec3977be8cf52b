"""GET /metrics: Llamapool's metrics by model, and llama-server's names."""

import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from server.pool.state import Status
from tests.api.conftest import Api, GoLive, Serve, chat_request, until
from tests.api.management.test_models import TWO_MODELS, until_status
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader


def sample(text: str, line_start: str) -> float:
    """Return the value of the only sample whose line starts with `line_start`."""
    (line,) = [line for line in text.splitlines() if line.startswith(line_start)]
    return float(line.rsplit(" ", 1)[1])


async def test_request_is_counted_under_its_model(serve: Serve) -> None:
    async with serve(FakeLoader(replies={"Hi": "there"}), server={"metrics": True}) as api:
        body = {"prompt": "Hi", "max_tokens": 3}
        assert (await api.client.post("/v1/completions", json=body)).status_code == 200
        reply = await api.client.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert int(reply.headers["process-start-time-unix"]) > 1_600_000_000
        text = reply.text
        assert sample(text, 'llamapool_prompt_tokens_total{model="demo"}') == 3
        assert sample(text, 'llamapool_tokens_predicted_total{model="demo"}') == 3
        assert sample(text, 'llamapool_time_to_first_token_seconds_count{model="demo"}') == 1
        assert sample(text, 'llamapool_request_duration_seconds_count{model="demo"}') == 1


async def test_requests_are_counted_by_route_and_not_by_path(serve: Serve) -> None:
    async with serve(server={"metrics": True}) as api:
        for path in ("/v1/models/x", "/v1/models/y", "/nowhere/1", "/nowhere/2"):
            await api.client.get(path)
        await api.client.request("BREW", "/health")
        text = await scrape(api)
        for method, path, status, n in (
            ("GET", "/v1/models/{model_id:path}", 404, 2),
            ("GET", "unmatched", 404, 2),
            ("other", "unmatched", 405, 1),
        ):
            labels = f'{{method="{method}",path_template="{path}",status="{status}"}}'
            assert sample(text, f"llamapool_http_requests_total{labels}") == n
        assert "nowhere" not in text


COMPLETIONS = "POST /v1/completions"


async def scrape(api: Api, query: str = "") -> str:
    return (await api.client.get(f"/metrics{query}")).text


def llama_server_metrics(text: str) -> dict[str, tuple[str, float]]:
    """Return type and value by name, parsed as in llama.cpp's tools/server/tests/unit/test_metrics.py."""
    types, values = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            types[name] = kind
        elif line.startswith("llamacpp:") and "{" not in line:
            name, value = line.split(" ", 1)
            values[name] = (types[name], float(value))
    return values


async def test_metrics_of_one_model_have_no_model_label(serve: Serve) -> None:
    async with serve(models=TWO_MODELS, server={"metrics": True}) as api:
        for model, n in (("first", 2), ("b", 3)):
            await api.expect(COMPLETIONS, {"model": model, "prompt": "Hi", "max_tokens": n, "ignore_eos": True})
        text = await scrape(api, "?model=b")
        assert "model=" not in text
        found = llama_server_metrics(text)
        assert found["llamacpp:tokens_predicted_total"] == ("counter", 3)
        assert found["llamacpp:n_tokens_max"][0] == "counter"
        assert found["llamacpp:requests_processing"] == ("gauge", 0)
        first = llama_server_metrics(await scrape(api, "?model=first"))  # an alias
        assert first["llamacpp:tokens_predicted_total"] == ("counter", 2)


async def test_llama_server_metrics_sum_all_models(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum includes the counters of unloaded models."""
    monkeypatch.setattr("server.metrics.collector.WINDOW_S", 1e9)
    async with serve(models=TWO_MODELS, server={"metrics": True}) as api:
        assert llama_server_metrics(await scrape(api))["llamacpp:n_decode_total"] == ("counter", 0)
        for model, n in (("first", 2), ("b", 3)):
            await api.expect(COMPLETIONS, {"model": model, "prompt": "Hi", "max_tokens": n, "ignore_eos": True})
        with api.pool.subscribe() as events:
            await api.client.post("/models/unload", json={"model": "b"})
            await until_status(api, events, "b", Status.UNLOADED)
        text = await scrape(api)
        found = llama_server_metrics(text)
        assert found["llamacpp:tokens_predicted_total"] == ("counter", 5)
        assert found["llamacpp:n_tokens_max"] == ("counter", 5)
        assert found["llamacpp:predicted_tokens_seconds"][1] > 0
        assert [line for line in text.splitlines() if line.startswith("llamacpp:") and "model" in line] == []
        assert sample(text, 'llamapool_tokens_predicted_total{model="b"}') == 3
        again = llama_server_metrics(await scrape(api))
        assert again["llamacpp:predicted_tokens_seconds"] == found["llamacpp:predicted_tokens_seconds"]
        await api.expect(COMPLETIONS, {"model": "b", "prompt": "Hi", "max_tokens": 3, "ignore_eos": True})
        assert sample(await scrape(api), 'llamapool_tokens_predicted_total{model="b"}') == 6


async def test_metrics_have_status_slots_and_cells_of_each_model(serve: Serve) -> None:
    async with serve(models=TWO_MODELS, server={"metrics": True}) as api:
        text = await scrape(api)
        assert sample(text, 'llamapool_model_status{model="b",status="unloaded"}') == 1
        assert sample(text, 'llamapool_model_status{model="b",status="ready"}') == 0
        await api.expect(COMPLETIONS, {"model": "b", "prompt": "Hello", "max_tokens": 3, "ignore_eos": True})
        loaded = api.loaded("b")
        await until(lambda: not loaded.busy)
        text = await scrape(api)
        for name, value in (
            ('model_status{model="b",status="ready"}', 1),
            ('model_loads_total{model="b",result="ready"}', 1),
            ('model_load_seconds_count{model="b"}', 1),
            ('slots{model="b"}', 4),
            ('kv_cells{model="b"}', 1024),
            ('kv_cells_used{by="cached",model="b"}', 8),
            ('kv_cells_used{by="running",model="b"}', 0),
            ('kv_cache_usage_ratio{model="b"}', 0),
            ('choices_total{model="b",reason="limit"}', 1),
        ):
            assert sample(text, f"llamapool_{name}") == value, name


async def test_metrics_have_the_cells_of_running_requests(live: GoLive) -> None:
    steps = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=2, steps=steps), server={"metrics": True}) as running:
        reader, writer = await running.connect(chat_request(max_tokens=50))
        await reader.readuntil(b"}\n\n")
        text = (await running.api.client.get("/metrics")).text
        used = sample(text, 'llamapool_kv_cells_used{by="running",model="demo"}')
        assert used > 0
        assert sample(text, 'llamapool_kv_cache_usage_ratio{model="demo"}') == used / 512
        assert sample(text, "llamapool_server_kv_cache_usage_ratio") == used / 512
        assert sample(text, "llamapool_server_requests_running") == 1
        steps.release(1000)
        writer.close()
        await writer.wait_closed()


async def test_requests_are_counted_by_key_name_and_error_reason(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={"scopes": ["infer", "metrics"]})
    async with serve(server={"metrics": True, "keys_file": file}) as api:
        body = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
        for key in ("ada", "ada", "wrong-1", "wrong-2"):
            await api.client.post("/v1/completions", json=body, headers=bearer(key))
        await api.expect("GET /metrics", None, 401)
        text = (await api.client.get("/metrics", headers=bearer("ada"))).text
    for name, value in (
        ('key_requests_total{key="ada",status="200"}', 2),
        ('key_tokens_total{key="ada",kind="prompt"}', 6),
        ('key_tokens_total{key="ada",kind="predicted"}', 6),
        ('request_errors_total{reason="authentication_failed"}', 3),
    ):
        assert sample(text, f"llamapool_{name}") == value, name
    assert "wrong-" not in text
    assert "key-" not in text


async def test_failed_load_is_counted(serve: Serve) -> None:
    async with serve(FakeLoader(failing={"demo": "no"}), server={"metrics": True}, wait=False) as api:
        await until(lambda: api.pool.state("demo").status is Status.FAILED)
        await until(
            lambda: api.app.state.services.metrics._registry.get_sample_value(
                "llamapool_model_loads_total", {"model": "demo", "result": "failed"}
            )
        )
        text = (await api.client.get("/metrics")).text
        assert "llamapool_model_load_seconds_count{" not in text


async def test_metrics_have_build_info_and_event_loop_lag(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.metrics.exposition.LAG_INTERVAL_S", 0.001)
    async with serve(server={"metrics": True}) as api:
        registry = api.app.state.services.metrics._registry
        await until(lambda: registry.get_sample_value("llamapool_event_loop_lag_seconds_count"))
        text = (await api.client.get("/metrics")).text
        assert f'llamapool_build_info{{llama_cpp_python="{version("llama-cpp-python")}"' in text
