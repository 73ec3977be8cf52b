"""Real processes in a container's environment: every start and every command ignores the kubelet's service links."""

import sys
from pathlib import Path

import pytest
import yaml

from server.cli.command_line import main
from tests.support.kubelet import service_links
from tests.support.real_server import ROOT, RealServer, free_port

SERVICES = [
    yaml.safe_load((ROOT / "deploy/kubernetes/base/service.yaml").read_text(encoding="utf-8")),
    {"metadata": {"name": "llama-arg"}, "spec": {"ports": [{"port": 8080}]}},
    {"metadata": {"name": "llamapool-server--admin"}, "spec": {"ports": [{"port": 9, "protocol": "UDP"}]}},
]
LINKS = {name: text for service in SERVICES for name, text in service_links(service, "10.96.0.7").items()}
ISOLATED = {**LINKS, "LLAMAPOOL_DEFAULTS__ISOLATION": "process", "LLAMAPOOL_CONFIG": str(ROOT / "config/default.yaml")}


@pytest.mark.parametrize(
    "command", ["-m server --port", "-m uvicorn server.app:app --port", "-m uvicorn llamapool.app:app --port"]
)
def test_a_server_with_isolated_models_starts_beside_service_links(command: str) -> None:
    port = free_port()
    ends_with = 0 if command.startswith("-m server") else -15
    with RealServer([sys.executable, *command.split(), str(port)], port, ISOLATED, ends_with=ends_with) as server:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
        assert server.post("/v1/chat/completions", body)["usage"]["completion_tokens"] > 0
        assert server.get("/v1/models")["data"][0]["id"] == "demo"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["check-config", str(ROOT / "config/default.yaml")], 0),
        (["fit", "demo"], 0),
        (["list"], 0),
        (["pull", "owner/name", "--offline"], 1),  # it is not in the cache; a wrong setting is 2
        (["rm", "owner/name"], 1),
        (["keys", "add", "keys.yaml", "ada"], 0),
        (["docs"], 0),
        (["--list-devices"], 0),
        (["--cache-list"], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_runs_beside_service_links(
    words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {**LINKS, "LLAMA_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.chdir(tmp_path)
    assert main(words) == status
