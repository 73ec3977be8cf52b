"""SmolLM2-135M-Instruct: real text, compared with llama-server and with facts.

With 4-bit weights, logits of two builds differ by half a unit, because activations are rounded to 8 bits. Tests of
equal text therefore use the same weights as F32 (540 MB), with which they differ by 3e-4.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.model.native_fixtures import quantize
from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import PASSIVE_WAIT, start_pair
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.downloads import SMOLLM2, needs_smollm2
from tests.support.real_server import RealServer, llamapool

pytestmark = needs_smollm2

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village",
    "def fibonacci(n):\n",
    "The three states of water are",
    "In 1969, the first man walked on",
    "Dear Sir or Madam,\n\n",
    "Größe: 5 µm, 価格: 1.000 €; 😀 means",
)
FACTS = {
    "What language is spoken in Spain?": "Spanish",
    "What is 2 + 2?": "4",
    "What is the capital of Germany?": "Berlin",
    "What is the chemical formula of water?": "H2O",
    "What planet is known as the Red Planet?": "Mars",
    "What is the largest ocean on Earth?": "Pacific",
    "What is the boiling point of water in Celsius?": "100",
    "What is the opposite of hot?": "cold",
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
        "languages": {"type": "array", "items": {"enum": ["en", "fr", "de"]}, "minItems": 1, "uniqueItems": True},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
TEXT = (
    "The harbour master kept a green notebook. Every morning he wrote down which boats had left, who was on board, and "
    "what the wind was like. On the third of May the wind came from the north, and only two boats had left the harbour."
)


@pytest.fixture(scope="module")
def f32_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The weights as F32. The file is removed at the end, because pytest would keep three of them."""
    path = tmp_path_factory.mktemp("smollm2") / "smollm2-f32.gguf"
    quantize(SMOLLM2, path, ftype=0)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def pair(f32_path: Path) -> Iterator[Pair]:
    """Llamapool and llama-server with the F32 weights."""
    with ExitStack() as stack:
        yield start_pair(stack, f32_path, n_ctx=4096, n_parallel=4)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    """Llamapool with the 4-bit weights."""
    with llamapool(SMOLLM2, "-c", "4096", "-np", "4", "-t", "1", environment=PASSIVE_WAIT) as running:
        yield running


def post_concurrently(server: RealServer, path: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


def test_tokens_of_real_text_are_those_of_llama_server(pair: Pair) -> None:
    for text in (*PROMPTS, TEXT, Path(__file__).read_text(encoding="utf-8")):
        ours, theirs = pair.post("/tokenize", {"content": text, "with_pieces": True})
        assert ours == theirs


def test_greedy_texts_are_those_of_llama_server(pair: Pair) -> None:
    bodies = [{"prompt": text, "n_predict": 16, "temperature": 0, "n_probs": 1} for text in PROMPTS]
    for ours, theirs in zip(
        *(post_concurrently(one, "/completion", bodies) for one in (pair.ours, pair.theirs)), strict=True
    ):
        assert ours["content"] == theirs["content"]
        assert len(ours["content"]) > 10
        logprobs = [[entry["logprob"] for entry in reply["completion_probabilities"]] for reply in (ours, theirs)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=LOGPROB_SPREAD)


def test_replies_contain_most_facts(server: RealServer) -> None:
    """Six of eight, because rounding on another CPU may change the next token."""
    bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0} for text in FACTS]
    replies = post_concurrently(server, "/v1/chat/completions", bodies)
    contents = [reply["choices"][0]["message"]["content"] for reply in replies]
    correct = [fact.lower() in content.lower() for content, fact in zip(contents, FACTS.values(), strict=True)]
    assert sum(correct) >= 6, contents


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_constrained_reply_matches_its_schema_and_has_a_name(server: RealServer, temperature: float) -> None:
    body = {
        "messages": [{"role": "user", "content": "Invent a person: a name, an age and the languages they speak."}],
        "max_tokens": 120,
        "temperature": temperature,
        "seed": 3,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    bodies = [body, *({**body, "seed": i, "response_format": response_format} for i in range(3))]
    free, *structured = post_concurrently(server, "/v1/chat/completions", bodies)
    with pytest.raises(ValueError, match="line 1"):
        json.loads(free["choices"][0]["message"]["content"])
    for reply in structured:
        person = json.loads(reply["choices"][0]["message"]["content"])
        jsonschema.validate(person, PERSON)
        assert any(letter.isalpha() for letter in person["name"])
