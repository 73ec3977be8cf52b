"""``GET /v1/usage`` and budgets of keys."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Api, Serve
from tests.api.transport.test_keys import bearer, chat, key_file, server
from tests.support.fakes import FakeLoader

LOADER = {"assistant\n": "Hello there"}


async def usage_of(api: Api, caller: str, **params: str) -> Any:
    reply = await api.client.get("/v1/usage", params=params, headers=bearer(caller))
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_key_sees_its_own_usage_and_an_administrator_all(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path, ada={"tokens_per_day": 5000}, bert={}, admin={"scopes": ["metrics"]})
    async with serve(FakeLoader(replies=LOADER), server=server(keys)) as api:
        replies = [await chat(api, key) for key in ("ada", "ada", "bert")]
        counts = [reply.json()["usage"] for reply in replies]
        own = await usage_of(api, "ada")
        (row,) = own["data"]
        assert (row["key"], row["model"], row["requests"]) == ("ada", "demo", 2)
        assert row["prompt_tokens"] == sum(each["prompt_tokens"] for each in counts[:2])
        assert row["completion_tokens"] == sum(each["completion_tokens"] for each in counts[:2])
        n_used = row["prompt_tokens"] + row["completion_tokens"]
        assert own["budget"] == {"day": {"used": n_used, "limit": 5000}, "month": {"used": n_used, "limit": None}}
        assert (await usage_of(api, "ada", key="bert"))["data"] == own["data"]
        every = await usage_of(api, "admin")
        assert [row["key"] for row in every["data"]] == ["ada", "bert"]
        assert [row["key"] for row in (await usage_of(api, "admin", key="bert"))["data"]] == ["bert"]
        assert (await usage_of(api, "admin", end="2026-01-01"))["data"] == []
        table = await api.client.get("/v1/usage?format=csv", headers=bearer("admin"))
        assert table.headers["content-type"].startswith("text/csv")
        assert [{key: str(value) for key, value in row.items()} for row in every["data"]] == list(
            csv.DictReader(io.StringIO(table.text))
        )


@pytest.mark.parametrize("query", ["start=yesterday", "end=2026-13-01", "format=xml"])
async def test_an_invalid_query_is_refused(serve: Serve, query: str) -> None:
    async with serve() as api:
        assert (await api.client.get(f"/v1/usage?{query}")).status_code == 400


@pytest.mark.parametrize("period", ["day", "month"])
async def test_a_key_without_budget_left_is_refused_until_the_next_period(
    serve: Serve, tmp_path: Path, period: str
) -> None:
    keys = key_file(tmp_path, ada={f"tokens_per_{period}": 1}, bert={}, admin={"scopes": ["metrics"]})
    async with serve(FakeLoader(replies=LOADER), server=server(keys, metrics=True)) as api:
        assert (await chat(api, "ada")).status_code == 200
        refused = await chat(api, "ada")
        assert (refused.status_code, f"1 tokens per {period}" in refused.text) == (429, True)
        assert 1 <= int(refused.headers["retry-after"]) <= 31 * 86_400
        assert (await chat(api, "bert")).status_code == 200
        n_used = (await usage_of(api, "ada"))["budget"][period]["used"]
        metrics = (await api.client.get("/metrics", headers=bearer("admin"))).text
        assert f'llamapool_key_budget_used_tokens{{key="ada",period="{period}"}} {n_used}' in metrics
