"""Servers in real processes, shared by all tests of official clients.

`server` has one model and no API keys, `keyed_server` has an API key and two models, `demo` has the default model. The
first two serve a tiny model with random weights, whose template supports tools.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import EXACT, REPLY_S, ROOT, RealServer, llamapool, llamapool_config

API_KEY = "sk-of-the-tests"
N_CTX = 16384  # of a slot; long enough that tests finish before an endless reply does
ENDLESS = 16000  # tokens of a reply that a test cancels
QUIET = {"OMP_WAIT_POLICY": "passive"}
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou may call functions:\n<tools>"
    "{%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\nAnswer with\n"
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = """
server:
  api_keys: [{key}]
defaults:
  n_ctx: 1024
  n_parallel: 1
  n_threads: 1
models:
  first:
    path: {model}
    aliases: [gpt-4o-mini]
    load: startup
  second:
    path: {model}
    load: on_demand
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("gguf"), TinyModel(chat_template=TEMPLATE, n_ctx=N_CTX))


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[RealServer]:
    """Serve one model with four slots, without a key. A default seed makes replies deterministic."""
    flags = ("-c", str(4 * N_CTX), "-np", "4", "-t", "1", "-a", "tiny", "--metrics", "--seed", "3", *EXACT)
    with llamapool(model, *flags, environment=QUIET) as running:
        yield running


@pytest.fixture(scope="session")
def keyed_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Serve two models with one slot each, with an API key."""
    config = tmp_path_factory.mktemp("config") / "keyed.yaml"
    config.write_text(CONFIG.format(key=API_KEY, model=model))
    with llamapool_config(config, environment=QUIET) as running:
        yield running


@pytest.fixture(scope="session")
def demo() -> Iterator[RealServer]:
    """Serve the default model, which is trained to call tools, with two slots."""
    flags = ("-c", "4096", "-np", "2", "-t", "1", "-a", "demo")
    with llamapool(ROOT / "models" / "demo.gguf", *flags, environment=QUIET) as running:
        yield running


@pytest.fixture
def client(server: RealServer) -> Iterator[OpenAI]:
    """Return OpenAI's synchronous client, without retries."""
    with OpenAI(
        base_url=f"{server.base_url}/v1", api_key="sk-no-key-required", max_retries=0, timeout=REPLY_S
    ) as openai:
        yield openai


def busy_slots(server: RealServer) -> int:
    return sum(slot["is_processing"] for slot in server.get("/slots"))


def metric(server: RealServer, name: str) -> float:
    """Return a metric of `/metrics`, summed over models."""
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
    assert values, f"no metric {name}"
    return sum(values)
