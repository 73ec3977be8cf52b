from server.pool.state import Status
from tests.api.conftest import Serve
from tests.api.test_models import TWO, reached
from tests.fakes import FakeLoader


def sample(text: str, line_start: str) -> float:
    """The value of the one sample whose line starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(line_start)]
    return float(line.rsplit(" ", 1)[1])


async def test_without_the_flag_there_are_none(client):
    reply = await client.get("/metrics")
    assert (reply.status_code, reply.json()) == (
        501,
        {
            "error": {
                "code": 501,
                "message": "This server does not support metrics endpoint. Start it with `--metrics`",
                "type": "not_supported_error",
            }
        },
    )


async def test_tokens_of_a_request_are_counted_under_its_model(serve: Serve):
    async with serve(FakeLoader(replies={"Hi": "there"}), server={"metrics": True}) as api:
        body = {"prompt": "Hi", "max_tokens": 3}
        assert (await api.client.post("/v1/completions", json=body)).status_code == 200
        reply = await api.client.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert int(reply.headers["process-start-time-unix"]) > 1_600_000_000
        text = reply.text
        assert sample(text, 'llamacpp:prompt_tokens_total{model="demo"}') == 3
        assert sample(text, 'llamacpp:tokens_predicted_total{model="demo"}') == 3
        assert sample(text, 'llamapool_time_to_first_token_seconds_count{model="demo"}') == 1
        assert sample(text, 'llamapool_request_duration_seconds_count{model="demo"}') == 1


async def test_counters_survive_an_unload(serve: Serve):
    async with serve(models=TWO, server={"metrics": True}) as api:
        body = {"model": "b", "prompt": "Hi", "max_tokens": 3}
        assert (await api.client.post("/v1/completions", json=body)).status_code == 200
        with api.pool.subscribe() as events:
            await api.client.post("/models/unload", json={"model": "b"})
            await reached(api, events, "b", Status.UNLOADED)
        before = sample((await api.client.get("/metrics")).text, 'llamacpp:tokens_predicted_total{model="b"}')
        await api.client.post("/v1/completions", json=body)
        after = sample((await api.client.get("/metrics")).text, 'llamacpp:tokens_predicted_total{model="b"}')
        assert (before, after) == (3, 6)


async def test_requests_are_counted_by_route_and_not_by_what_clients_make_up(serve: Serve):
    async with serve(server={"metrics": True}) as api:
        await api.client.get("/v1/models/x")
        await api.client.get("/v1/models/y")
        await api.client.get("/nowhere/1")
        await api.client.get("/nowhere/2")
        await api.client.request("BREW", "/health")
        text = (await api.client.get("/metrics")).text
        requests = "llamapool_http_requests_total"
        path = "/v1/models/{model_id:path}"
        assert sample(text, f'{requests}{{method="GET",path_template="{path}",status="404"}}') == 2
        assert sample(text, f'{requests}{{method="GET",path_template="unmatched",status="404"}}') == 2
        assert sample(text, f'{requests}{{method="other",path_template="/health",status="405"}}') == 1
        assert "nowhere" not in text


async def test_openmetrics_on_request(serve: Serve):
    async with serve(server={"metrics": True}) as api:
        accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
        reply = await api.client.get("/metrics", headers=accept)
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        assert reply.text.endswith("# EOF\n")
