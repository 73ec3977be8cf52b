"""Vertex AI's prediction protocol and its variables."""

import threading
from pathlib import Path
from typing import Any

import pytest

from server.errors import ConfigError
from server.settings import Settings, load_settings
from tests.api.conftest import GoLive, Serve, chat_request, until
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader

ON = {"predict_route": "/v1/endpoints/7:predict", "health_route": "/alive"}
PATH = ON["predict_route"]
END = "<|im_end|>\n<|im_start|>assistant\n"


def chat(text: str = "Hi", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"@requestFormat": "chatCompletions", "messages": messages, "max_tokens": 3, **body}


async def test_instances_are_answered_in_their_order(serve: Serve) -> None:
    loader = FakeLoader(replies={"first" + END: "one", "second" + END: "two"})
    instances = [
        chat("first", max_tokens=20, stream=True),
        {"@requestFormat": "/tokenize", "content": "hi"},
        chat("second", max_tokens=20),
        {"@requestFormat": "apiChat", "messages": [{"role": "user", "content": "first"}]},
    ]
    async with serve(loader, server=ON) as api:
        reply = await api.client.post(PATH, json={"instances": instances})
    assert reply.status_code == 200
    first, tokens, second, ollama = reply.json()["predictions"]
    assert first["choices"][0]["message"]["content"] == "one"
    assert tokens == {"tokens": [104, 105]}
    assert second["choices"][0]["message"]["content"] == "two"
    assert ollama["message"]["content"] == "one"


async def test_a_failed_instance_does_not_fail_the_others(serve: Serve) -> None:
    bad = [
        "text",
        {"messages": []},
        {"@requestFormat": 5},
        {"@requestFormat": "/models/unload", "model": "demo"},
        {"@requestFormat": "predict", "instances": []},
        chat(max_tokens="many"),
        {"@requestFormat": "chatCompletions", "model": "nobody", "messages": []},
    ]
    async with serve(server=ON, models={"demo": {"path": "d.gguf", "load": "startup"}}) as api:
        reply = await api.expect(f"POST {PATH}", {"instances": [*bad, chat()]})
        *failed, good = reply.json()["predictions"]
        assert all("message" in each["error"] for each in failed)
        assert "instances.3.@requestFormat: '/models/unload' is unknown" in failed[3]["error"]["message"]
        assert good["choices"]


async def test_keys_and_their_limits_hold(serve: Serve, tmp_path: Path) -> None:
    ada = {"scopes": ["infer"], "requests_per_minute": 2}
    file = key_file(tmp_path, ada=ada, ops={"scopes": ["models"]})
    async with serve(server={**ON, "keys_file": str(file)}) as api:
        assert (await api.client.get("/alive")).status_code == 200
        body = {"instances": [chat(), chat(), chat()]}
        assert (await api.client.post(PATH, json=body)).status_code == 401
        assert (await api.client.post(PATH, json=body, headers=bearer("ops"))).status_code == 403
        reply = await api.client.post(PATH, json=body, headers=bearer("ada"))
        assert ["choices" in each for each in reply.json()["predictions"]] == [True, True, False]


async def test_a_disconnect_frees_the_slots_of_all_instances_by_the_next_step(live: GoLive) -> None:
    steps = threading.Semaphore(0)
    async with live(FakeLoader(n_seq=2, steps=steps), server=ON) as server:
        engine = server.api.loaded().engine
        _, writer = await server.connect(chat_request(PATH, instances=[chat(max_tokens=200, ignore_eos=True)] * 2))

        def both_run() -> bool:
            n_running = sum(slot.is_processing for slot in engine.slots())
            if n_running == 1:  # the other one arrives after the first one's step
                steps.release()
            return n_running == 2

        await until(both_run)
        writer.transport.abort()
        await until(lambda: not server.api.pool.states()[0].n_leases)
        steps.release()  # a single step
        await until(lambda: [slot.is_processing for slot in engine.slots()] == [False, False])
        for _ in range(50):
            steps.release()
        reply = await server.api.client.post(PATH, json={"instances": [chat()]})
        assert reply.json()["predictions"][0]["choices"]


def settings(*argv: str, **env: str) -> Settings:
    return load_settings(["-m", "demo.gguf", *argv], env)


def test_the_variables_count_only_in_prediction_mode() -> None:
    env = {"AIP_HTTP_PORT": "9000", "AIP_PREDICT_ROUTE": "p", "AIP_HEALTH_ROUTE": "h"}
    assert settings(**env).server.port == 8080
    assert settings(**env).server.predict_route == ""
    found = settings("--port", "81", **env, AIP_MODE="PREDICTION")
    assert (found.server.port, found.server.predict_route, found.server.health_route) == (9000, "/p", "/h")
    assert found.skipped == ("--port: port 81 has no effect, since AIP_HTTP_PORT sets port 9000",)
    plain = settings(AIP_MODE="PREDICTION")
    assert (plain.server.port, plain.server.predict_route, plain.server.health_route) == (8080, "/predict", "")
    assert plain.skipped == ()


@pytest.mark.parametrize(
    "env",
    [
        {"AIP_PREDICT_ROUTE": "/v1/chat/completions"},
        {"AIP_HEALTH_ROUTE": "/v1/models"},
        {"AIP_HTTP_PORT": "many"},
        {"AIP_PREDICT_ROUTE": "/x/"},
    ],
)
def test_a_mistake_names_the_variable(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(env))):
        settings(**env, AIP_MODE="PREDICTION")


def test_the_file_of_the_web_uis_settings_may_be_named_by_its_variable(tmp_path: Path) -> None:
    file = tmp_path / "page.json"
    file.write_text('{"theme": "dark"}')
    assert settings(LLAMA_ARG_UI_CONFIG_FILE=str(file)).server.ui_config == {"theme": "dark"}
    with pytest.raises(ConfigError, match="no such file"):
        settings(LLAMA_ARG_UI_CONFIG_FILE="/nowhere")
