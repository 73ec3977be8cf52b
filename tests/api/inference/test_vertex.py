"""Vertex AI's prediction protocol (`predict_route`) and its environment variables."""

import threading
from pathlib import Path
from typing import Any

import pytest

from server.errors import ConfigError
from server.settings import Settings, load_settings
from tests.api.conftest import GoLive, Serve, chat_request, until
from tests.api.scripted import TURN
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader

ROUTES = {"predict_route": "/v1/endpoints/7:predict", "health_route": "/alive"}
PATH = ROUTES["predict_route"]


def chat_instance(text: str = "Hi", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"@requestFormat": "chatCompletions", "messages": messages, "max_tokens": 3, **body}


async def test_predictions_are_in_the_order_of_the_instances(serve: Serve) -> None:
    loader = FakeLoader(replies={"first" + TURN: "one", "second" + TURN: "two"})
    instances = [
        chat_instance("first", max_tokens=20, stream=True),
        {"@requestFormat": "/tokenize", "content": "hi"},
        chat_instance("second", max_tokens=20),
        {"@requestFormat": "apiChat", "messages": [{"role": "user", "content": "first"}]},
    ]
    async with serve(loader, server=ROUTES) as api:
        reply = await api.client.post(PATH, json={"instances": instances})
    assert reply.status_code == 200
    first, tokens, second, ollama = reply.json()["predictions"]
    assert first["choices"][0]["message"]["content"] == "one"
    assert tokens == {"tokens": [104, 105]}
    assert second["choices"][0]["message"]["content"] == "two"
    assert ollama["message"]["content"] == "one"


async def test_failed_instance_does_not_fail_the_others(serve: Serve) -> None:
    invalid = [
        "text",
        {"messages": []},
        {"@requestFormat": 5},
        {"@requestFormat": "/models/unload", "model": "demo"},
        {"@requestFormat": "predict", "instances": []},
        chat_instance(max_tokens="many"),
        {"@requestFormat": "chatCompletions", "model": "nobody", "messages": []},
    ]
    async with serve(server=ROUTES, models={"demo": {"path": "d.gguf", "load": "startup"}}) as api:
        reply = await api.expect(f"POST {PATH}", {"instances": [*invalid, chat_instance()]})
        *failed, good = reply.json()["predictions"]
        assert all("message" in each["error"] for each in failed)
        assert "instances.3.@requestFormat: '/models/unload' is unknown" in failed[3]["error"]["message"]
        assert good["choices"]


async def test_scopes_and_rate_limits_apply_to_every_instance(serve: Serve, tmp_path: Path) -> None:
    ada = {"scopes": ["infer"], "requests_per_minute": 2}
    file = key_file(tmp_path, ada=ada, ops={"scopes": ["models"]})
    async with serve(server={**ROUTES, "keys_file": str(file)}) as api:
        assert (await api.client.get("/alive")).status_code == 200
        body = {"instances": [chat_instance(), chat_instance(), chat_instance()]}
        assert (await api.client.post(PATH, json=body)).status_code == 401
        assert (await api.client.post(PATH, json=body, headers=bearer("ops"))).status_code == 403
        reply = await api.client.post(PATH, json=body, headers=bearer("ada"))
        assert ["choices" in each for each in reply.json()["predictions"]] == [True, True, False]


async def test_disconnect_frees_the_slots_of_all_instances(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    async with live(FakeLoader(n_seq=2, steps=steps), server=ROUTES) as server:
        engine = server.api.loaded().engine
        _, writer = await server.connect(
            chat_request(PATH, instances=[chat_instance(max_tokens=200, ignore_eos=True)] * 2)
        )

        def both_run() -> bool:
            n_running = sum(slot.is_processing for slot in engine.slots())
            if n_running == 1:  # the second request arrives after this step
                steps.release()
            return n_running == 2

        await until(both_run)
        writer.transport.abort()
        await until(lambda: not server.api.pool.states()[0].n_leases)
        steps.release()  # a single step
        await until(lambda: [slot.is_processing for slot in engine.slots()] == [False, False])
        for _ in range(50):
            steps.release()
        reply = await server.api.client.post(PATH, json={"instances": [chat_instance()]})
        assert reply.json()["predictions"][0]["choices"]


def settings(*argv: str, **env: str) -> Settings:
    return load_settings(["-m", "demo.gguf", *argv], env)


def test_aip_variables_apply_only_in_prediction_mode() -> None:
    env = {"AIP_HTTP_PORT": "9000", "AIP_PREDICT_ROUTE": "p", "AIP_HEALTH_ROUTE": "h"}
    assert settings(**env).server.port == 8080
    assert settings(**env).server.predict_route == ""
    loaded = settings("--port", "81", **env, AIP_MODE="PREDICTION")
    assert (loaded.server.port, loaded.server.predict_route, loaded.server.health_route) == (9000, "/p", "/h")
    assert loaded.skipped == ("--port: port 81 has no effect, since AIP_HTTP_PORT sets port 9000",)
    defaults = settings(AIP_MODE="PREDICTION")
    assert (defaults.server.port, defaults.server.predict_route, defaults.server.health_route) == (8080, "/predict", "")
    assert defaults.skipped == ()


@pytest.mark.parametrize(
    "env",
    [
        {"AIP_PREDICT_ROUTE": "/v1/chat/completions"},
        {"AIP_HEALTH_ROUTE": "/v1/models"},
        {"AIP_HTTP_PORT": "many"},
        {"AIP_PREDICT_ROUTE": "/x/"},
    ],
)
def test_invalid_aip_variable_is_named_in_the_error(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(env))):
        settings(**env, AIP_MODE="PREDICTION")


def test_ui_config_file_is_read_from_its_variable(tmp_path: Path) -> None:
    file = tmp_path / "page.json"
    file.write_text('{"theme": "dark"}')
    assert settings(LLAMA_ARG_UI_CONFIG_FILE=str(file)).server.ui_config == {"theme": "dark"}
    with pytest.raises(ConfigError, match="no such file"):
        settings(LLAMA_ARG_UI_CONFIG_FILE="/nowhere")
