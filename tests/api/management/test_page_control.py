"""What the page shows and does for who runs the server: the log, bodies, pins, the bench."""

import logging
from typing import Any

import httpx
import pytest

from server.dialects.fields import parse
from server.errors import InvalidRequest
from server.web import bench
from server.web.bench import SCENARIOS, Address, BenchBody, measured
from tests.api.conftest import Serve

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "max_tokens": 3}
OWN = Address("this", "http://127.0.0.1:1", "demo", "secret")


async def test_the_log_is_told_from_a_line_on(client: httpx.AsyncClient) -> None:
    logging.getLogger("server.test").warning("a line of %s", "words")
    lines = (await client.get("/page/log")).json()["lines"]
    said = next(line for line in lines if line["origin"] == "test")
    assert (said["level"], said["text"]) == ("W", "a line of words")
    logging.getLogger("server.test").warning("another")
    later = (await client.get("/page/log", params={"after": said["number"]})).json()["lines"]
    assert [line["text"] for line in later if line["origin"] == "test"] == ["another"]
    assert (await client.get("/page/log", params={"after": "x"})).status_code == 400


async def test_bodies_are_kept_only_where_that_is_on(serve: Serve) -> None:
    for on in (False, True):
        async with serve(server={"log_bodies": on}) as api:
            assert (await api.client.get("/page/config")).json()["log_bodies"] is on
            headers = {"X-Request-Id": "one"}
            reply = await api.client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers)
            found = await api.client.get("/page/bodies", params={"id": "one"})
            assert found.status_code == (200 if on else 404)
            if on:
                assert '"Hi"' in found.json()["request"]["text"]
                assert found.json()["reply"]["text"] == reply.text
            assert (await api.client.get("/page/bodies", params={"id": "two"})).status_code == 404


async def test_what_others_do_is_not_told_to_other_machines(serve: Serve) -> None:
    async with serve(server={"log_bodies": True}) as api:
        transport = httpx.ASGITransport(api.app, client=("192.0.2.7", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as other:
            for path in ("/page/log", "/page/bodies"):
                assert (await other.get(path)).status_code == 403
            assert (await other.post("/page/bench", json={"model": "demo"})).status_code == 403
    async with serve(server={"log_bodies": True, "api_keys": ["secret"]}) as api:
        assert (await api.client.get("/page/log")).status_code == 401


async def test_a_model_is_pinned_until_it_is_not(serve: Serve) -> None:
    async with serve() as api:
        for pinned in (True, False):
            assert (await api.client.post("/models/pin", json={"model": "demo", "pinned": pinned})).status_code == 200
            assert (await api.client.get("/models")).json()["data"][0].get("pinned", False) is pinned
        assert (await api.client.post("/models/pin", json={"model": "demo", "pinned": 1})).status_code == 400
        assert (await api.client.post("/models/pin", json={"model": "nobody"})).status_code in (400, 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scenarios"),
        ({"scenarios": []}, "scenarios"),
        ({"scenarios": ["contended"]}, "scenarios.0"),
        ({"scenarios": ["one"], "parallel": 0}, "parallel"),
        ({"scenarios": ["one"], "parallel": True}, "parallel"),
        ({"scenarios": ["one"], "scale": 2}, "scale"),
        ({"scenarios": ["one"], "other": "ftp://host"}, "other"),
        ({"scenarios": ["one"], "other": "http://host", "other_key": 1}, "other_key"),
    ],
)
def test_an_order_of_the_bench_is_checked(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(BenchBody, body)
    assert raised.value.param == field


def test_every_scenario_is_one_of_the_bench() -> None:
    from server.bench.scenarios import SCENARIOS as KNOWN

    assert {scenario.name for scenario in KNOWN if not scenario.local} == {*SCENARIOS}


async def test_both_addresses_are_measured_with_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str]] = []

    async def run(words: list[str], key: str) -> tuple[str, str]:
        asked.append((words, key))
        if "http://other" in words:
            return "", "llamapool bench: nobody answers"
        return '{"scenarios": [{"failure": null, "rounds": [{"tok/s": 5.0}]}]}', ""

    monkeypatch.setattr(bench, "_run", run)
    body = {"scenarios": ["one", "rate"], "other": "http://other", "other_key": "k"}
    found = [one async for one in measured(parse(BenchBody, body), OWN)]
    results = [one for one in found if "scenario" in one]
    assert results[:2] == [
        {"scenario": "one", "address": "this", "figures": {"tok/s": 5.0}},
        {"scenario": "one", "address": "other", "failure": "nobody answers"},
    ]
    assert len(results) == 4
    assert [key for _, key in asked] == ["secret", "k", "secret", "k"]
    assert all("secret" not in words for words, _ in asked)
    seeds = [words[words.index("--seed") + 1] for words, _ in asked]
    assert seeds[0] == seeds[1]
    assert seeds[2] == seeds[3]
