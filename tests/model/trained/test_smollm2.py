"""Real weights: SmolLM2-135M-Instruct, wherever a claim is about real text.

In 4 bits, kernels of two builds are half a unit of a logit apart: activations are rounded to 8 bits, so the least
difference grows to that. Where texts must be equal, the same weights are written as F32 (540 MB), in
which both libraries agree to 3e-4.
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
from tests.model.oracle.conftest import WAIT_QUIETLY, start_pair
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.downloads import SMOLLM2, needs_smollm2
from tests.support.real_server import RealServer, llamapool

pytestmark = needs_smollm2

CONTINUED = (
    "The capital of France is",
    "Once upon a time, in a small village",
    "def fibonacci(n):\n",
    "The three states of water are",
    "In 1969, the first man walked on",
    "Dear Sir or Madam,\n\n",
    "Größe: 5 µm, 価格: 1.000 €; 😀 means",
)
ASKED = ("What is the capital of France?", "What is 2 + 2?", "Name three animals that live in the sea.")
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
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weights as F32, removed at the end: pytest would keep three of them."""
    path = tmp_path_factory.mktemp("smollm2") / "smollm2-f32.gguf"
    quantize(SMOLLM2, path, ftype=0)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def pair(exact: Path) -> Iterator[Pair]:
    """Llamapool and llama-server on the F32 weights."""
    with ExitStack() as stack:
        yield start_pair(stack, exact, n_ctx=4096, n_parallel=4)


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    """Llamapool on the file as it is."""
    with llamapool(SMOLLM2, "-c", "4096", "-np", "4", "-t", "1", environment=WAIT_QUIETLY) as running:
        yield running


def together(server: RealServer, path: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """The replies to requests that are sent at once."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


def test_real_text_is_tokenized_as_by_llama_server(pair: Pair) -> None:
    for text in (*CONTINUED, TEXT, Path(__file__).read_text(encoding="utf-8")):
        ours, theirs = pair.post("/tokenize", {"content": text, "with_pieces": True})
        assert ours == theirs


def test_greedy_texts_are_llama_servers(pair: Pair) -> None:
    bodies = [{"prompt": text, "n_predict": 16, "temperature": 0, "n_probs": 1} for text in CONTINUED]
    for ours, theirs in zip(*(together(one, "/completion", bodies) for one in (pair.ours, pair.theirs)), strict=True):
        assert ours["content"] == theirs["content"]
        assert len(ours["content"]) > 10
        logprobs = [[entry["logprob"] for entry in reply["completion_probabilities"]] for reply in (ours, theirs)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=LOGPROB_SPREAD)


def test_it_answers_sensibly(server: RealServer) -> None:
    """Six of eight: where two words are near, another processor may say the other one."""
    bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0} for text in FACTS]
    answers = [reply["choices"][0]["message"]["content"] for reply in together(server, "/v1/chat/completions", bodies)]
    right = [fact.lower() in answer.lower() for answer, fact in zip(answers, FACTS.values(), strict=True)]
    assert sum(right) >= 6, answers


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_an_answer_has_the_schemas_structure_and_real_content(server: RealServer, temperature: float) -> None:
    body = {
        "messages": [{"role": "user", "content": "Invent a person: a name, an age and the languages they speak."}],
        "max_tokens": 120,
        "temperature": temperature,
        "seed": 3,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    free, *structured = together(
        server, "/v1/chat/completions", [body, *({**body, "seed": i, "response_format": wanted} for i in range(3))]
    )
    with pytest.raises(ValueError, match="line 1"):
        json.loads(free["choices"][0]["message"]["content"])
    for reply in structured:
        person = json.loads(reply["choices"][0]["message"]["content"])
        jsonschema.validate(person, PERSON)
        assert any(letter.isalpha() for letter in person["name"])
