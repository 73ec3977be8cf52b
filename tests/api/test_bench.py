"""`llamapool bench` against the application over a fake model, through a real socket."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from server.bench.command import main
from server.bench.scenarios import SCENARIOS
from tests.api.conftest import GoLive
from tests.support.fakes import FakeLoader

pytestmark = pytest.mark.slow

QUICK = ("--scale", "0.05", "--parallel", "3", "--seed", "1")


def loader() -> FakeLoader:
    return FakeLoader(n_seq=3, n_ctx_seq=8192, n_batch=512)


async def bench(port: int, *words: str) -> int:
    """The command in a thread, as it has an event loop of its own; its exit status."""
    return await asyncio.to_thread(main, ["--url", f"http://127.0.0.1:{port}", "--quiet", *QUICK, *words])


@pytest.mark.parametrize("api", [(), ("--chat",)], ids=["completions", "chat"])
async def test_every_scenario_that_any_model_can_do_gives_figures(
    live: GoLive, tmp_path: Path, capsys: pytest.CaptureFixture[str], api: tuple[str, ...]
) -> None:
    names = [scenario.name for scenario in SCENARIOS if not scenario.local]
    async with live(loader()) as server:
        status = await bench(server.port, "--scenario", ",".join(names), "--json", str(tmp_path / "r.json"), *api)
    result = json.loads((tmp_path / "r.json").read_text())
    failures = {scenario["name"]: scenario["failure"] for scenario in result["scenarios"] if scenario["failure"]}
    assert (failures, status) == ({}, 0)
    figures = {scenario["name"]: scenario["rounds"][0] for scenario in result["scenarios"]}
    assert list(figures) == names
    assert all(value >= 0 for rounds in figures.values() for value in rounds.values())
    assert figures["long"]["TTFT of the long prompt ms"] > 0
    assert figures["prefix"]["prompt tokens computed"] < figures["prefix"]["prompt tokens"]
    assert "longest gap ms" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="pins a process to a core")
async def test_the_neighbour_is_gone_after_its_scenario(live: GoLive) -> None:
    async with live(loader()) as server:
        assert await bench(server.port, "--scenario", "contended") == 0


async def test_what_a_server_cannot_do_is_reported_and_the_rest_is_measured(
    live: GoLive, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live(FakeLoader(n_seq=3, n_ctx_seq=512, n_batch=512)) as server:
        status = await bench(server.port, "--scenario", "prefix,long", "--scale", "0.4", "--rounds", "2", "--json", "-")
    prefix, long = json.loads(capsys.readouterr().out)["scenarios"]
    assert [each["prompt tokens"] > 0 for each in prefix["rounds"]] == [True, True]
    assert "the server answered 400" in long["failure"]
    assert status == 1


async def test_a_wrong_key_is_said_and_has_its_own_status(live: GoLive, capsys: pytest.CaptureFixture[str]) -> None:
    async with live(loader(), server={"api_keys": ["right"]}) as server:
        assert await bench(server.port, "--scenario", "prefix", "--api-key", "wrong") == 4
        assert "refuses the API key (401): Invalid API Key" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix", "--api-key", "right") == 0


async def test_a_model_that_is_not_there_is_named(live: GoLive, capsys: pytest.CaptureFixture[str]) -> None:
    models = {name: {"path": "demo.gguf", "load": "on_demand"} for name in ("a", "b")}
    async with live(loader(), models=models) as server:
        assert await bench(server.port, "--scenario", "prefix", "--model", "c") == 5
        assert "model 'c'" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix") == 5
        assert "--model: a, b" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix", "--model", "b") == 0  # loads it
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["prefix", "TTFT", "p50"]


class PlainOpenAi:
    """An OpenAI-compatible server of chats alone that refuses fields which OpenAI's API does not have."""

    FIELDS = frozenset({"model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.json() if request.method == "POST" else {}
        unknown = set(body) - self.FIELDS
        if unknown:
            reply: Response = JSONResponse(
                {"error": {"message": f"Unrecognized request argument: {min(unknown)}"}}, 400
            )
        elif request.method == "GET":
            reply = JSONResponse({"object": "list", "data": [{"id": "plain", "object": "model"}]})
        elif request.url.path != "/v1/chat/completions":
            reply = JSONResponse({"error": {"message": "Invalid URL"}}, 404)
        else:
            message = {"role": "assistant", "content": "word"}
            usage = {"prompt_tokens": 70, "completion_tokens": 1}
            value = {"choices": [{"index": 0, "message": message}], "usage": usage}
            events = f"data: {json.dumps(value)}\n\ndata: [DONE]\n\n"
            reply = PlainTextResponse(events) if body.get("stream") else JSONResponse(value)
        await reply(scope, receive, send)


async def test_a_server_without_llama_servers_fields_is_measured_by_flags(
    live: GoLive, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live(loader()) as server:
        server.api.app.middleware_stack = PlainOpenAi()
        prefix = ("--scenario", "prefix")
        assert await bench(server.port, *prefix) == 6
        assert "Unrecognized request argument: ignore_eos" in capsys.readouterr().err
        plain = (*prefix, "--body", '{"ignore_eos": null}')
        assert await bench(server.port, *plain) == 5
        assert "--chat uses" in capsys.readouterr().err
        assert await bench(server.port, *plain, "--chat") == 0


async def test_nobody_at_the_address_is_said(live: GoLive, capsys: pytest.CaptureFixture[str]) -> None:
    async with live(loader()) as server:
        port = server.port
    assert await bench(port) == 3
    assert f"http://127.0.0.1:{port} can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--scenario", "fast"], ["--url", "ftp://x"], ["--json", "/nowhere/r.json", "--scenario", "prefix"]]
)
async def test_what_makes_no_sense_is_said(live: GoLive, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    async with live(loader()) as server:
        assert await bench(server.port, *words) == 1
    assert words[1].split("/")[-1] in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--scale", "nan"], ["--body", "[1]"], ["--fast"]])
def test_wrong_options_end_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
