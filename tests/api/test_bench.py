"""`llamapool bench` over a real socket, against the application with a fake model."""

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


async def bench(port: int, *arguments: str) -> int:
    """Run the command in a thread, since it starts its own event loop. Return its exit status."""
    return await asyncio.to_thread(main, ["--url", f"http://127.0.0.1:{port}", "--quiet", *QUICK, *arguments])


@pytest.mark.parametrize("api", [(), ("--chat",)], ids=["completions", "chat"])
async def test_every_remote_scenario_reports_its_measurements(
    live: GoLive, tmp_path: Path, capsys: pytest.CaptureFixture[str], api: tuple[str, ...]
) -> None:
    names = [scenario.name for scenario in SCENARIOS if not scenario.local]
    async with live(loader()) as server:
        status = await bench(server.port, "--scenario", ",".join(names), "--json", str(tmp_path / "r.json"), *api)
    result = json.loads((tmp_path / "r.json").read_text())
    failures = {scenario["name"]: scenario["failure"] for scenario in result["scenarios"] if scenario["failure"]}
    assert (failures, status) == ({}, 0)
    rounds = {scenario["name"]: scenario["rounds"][0] for scenario in result["scenarios"]}
    assert list(rounds) == names
    assert all(value >= 0 for values in rounds.values() for value in values.values())
    assert rounds["long"]["TTFT of the long prompt ms"] > 0
    assert rounds["prefix"]["prompt tokens computed"] < rounds["prefix"]["prompt tokens"]
    assert "longest gap ms" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="pins a process to a core")
async def test_contended_scenario_succeeds(live: GoLive) -> None:
    async with live(loader()) as server:
        assert await bench(server.port, "--scenario", "contended") == 0


async def test_failed_scenario_is_reported_and_the_others_are_measured(
    live: GoLive, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live(FakeLoader(n_seq=3, n_ctx_seq=512, n_batch=512)) as server:
        status = await bench(server.port, "--scenario", "prefix,long", "--scale", "0.4", "--rounds", "2", "--json", "-")
    prefix, long = json.loads(capsys.readouterr().out)["scenarios"]
    assert [each["prompt tokens"] > 0 for each in prefix["rounds"]] == [True, True]
    assert "the server answered 400" in long["failure"]
    assert status == 1


async def test_invalid_api_key_has_its_own_message_and_exit_status(
    live: GoLive, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live(loader(), server={"api_keys": ["right"]}) as server:
        assert await bench(server.port, "--scenario", "prefix", "--api-key", "wrong") == 4
        assert "refuses the API key (401): Invalid API Key" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix", "--api-key", "right") == 0


async def test_model_option_selects_one_of_several_models(live: GoLive, capsys: pytest.CaptureFixture[str]) -> None:
    models = {name: {"path": "demo.gguf", "load": "on_demand"} for name in ("a", "b")}
    async with live(loader(), models=models) as server:
        assert await bench(server.port, "--scenario", "prefix", "--model", "c") == 5
        assert "model 'c'" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix") == 5
        assert "--model: a, b" in capsys.readouterr().err
        assert await bench(server.port, "--scenario", "prefix", "--model", "b") == 0  # loads it
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["prefix", "TTFT", "p50"]


class PlainOpenAi:
    """A chat-only OpenAI-compatible server that rejects fields outside of OpenAI's API."""

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


async def test_plain_openai_server_is_measured_with_body_and_chat_options(
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


async def test_unreachable_server_has_its_own_message_and_exit_status(
    live: GoLive, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live(loader()) as server:
        port = server.port
    assert await bench(port) == 3
    assert f"http://127.0.0.1:{port} can't be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--scenario", "fast"], ["--url", "ftp://x"], ["--json", "/nowhere/r.json", "--scenario", "prefix"]]
)
async def test_invalid_values_are_named_in_the_error(
    live: GoLive, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    async with live(loader()) as server:
        assert await bench(server.port, *arguments) == 1
    assert arguments[1].split("/")[-1] in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--scale", "nan"], ["--body", "[1]"], ["--fast"]])
def test_invalid_options_end_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
