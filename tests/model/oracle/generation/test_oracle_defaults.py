"""``--grammar``, ``--json-schema`` and ``--special``: they hold for requests that bring nothing of their own."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import TinyModel, gguf_file

GREEDY = {"temperature": 0, "max_tokens": 12}
CHAT = {"messages": [{"role": "user", "content": "hello"}], **GREEDY}
GRAMMAR = 'root ::= ("yes" | "no") " " [0-9] [0-9]'
DIGITS = {"type": "integer", "minimum": 100, "maximum": 999}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("gguf"), TinyModel())


@pytest.fixture(scope="module")
def held(model: Path) -> Iterator[Pair]:
    """Both with a grammar of the settings."""
    with ExitStack() as stack:
        yield start_pair(stack, model, flags=("--grammar", GRAMMAR), params={"sampling.grammar": GRAMMAR})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12}),
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12, "grammar": 'root ::= "own"'}),
        ("/v1/completions", {"prompt": "the fox", **GREEDY}),
        ("/v1/chat/completions", CHAT),
    ],
)
def test_the_settings_grammar_holds_as_in_llama_server(held: Pair, path: str, body: dict[str, Any]) -> None:
    texts = [_text(reply) for reply in held.post(path, body)]
    assert texts[0] == texts[1]
    assert texts[0].startswith(("own",) if "grammar" in body else ("yes", "no"))


def test_a_request_may_bring_its_own(held: Pair) -> None:
    shape = {"type": "json_schema", "json_schema": {"schema": DIGITS}}
    text = _text(held.ours.post("/v1/chat/completions", {**CHAT, "response_format": shape}))
    assert 100 <= int(text) <= 999


def _text(reply: Any) -> str:
    if "content" in reply:
        return str(reply["content"])
    choice = reply["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])
