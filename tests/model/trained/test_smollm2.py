"""Real weights: SmolLM2-135M-Instruct, wherever a claim is about real text.

In 4 bits, kernels of two builds are half a unit of a logit apart: activations are rounded to 8 bits, so the least
difference grows to that. Where texts must be equal, the same weights are written as F32 (540 MB, in five seconds), in
which both libraries agree to 3e-4.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import jsonschema
import numpy as np
import pytest
from llama_cpp import Llama

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.engine.runner_api import BatchEntry, Runner
from server.llama.loader import LlamaLoader
from server.pool.spec import LoadParams, ModelSpec
from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import WAIT_QUIETLY, start_pair
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.downloads import SMOLLM2, needs_smollm2
from tests.support.real_server import RealServer, llamapool
from tests.unit.engine.builders import Reply, run
from tests.unit.engine.speculate.fake_draft import Machine

pytestmark = needs_smollm2

OWN_KEYS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
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

NATIVE = LoadParams(
    n_ctx=2048, n_parallel=2, n_threads=1, n_threads_batch=1, flash_attn="off", cache_type_k="f32", cache_type_v="f32"
)
GUESSING = EngineParams(spec_type="lookup", spec_ngrams=((3, 8),), check_integrity=True)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weights as F32, removed at the end: pytest would keep three of them."""
    path = tmp_path_factory.mktemp("smollm2") / "smollm2-f32.gguf"
    reader, writer = gguf.GGUFReader(SMOLLM2), gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(OWN_KEYS):
            element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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


def test_greedy_chats_are_llama_servers_in_every_api(pair: Pair) -> None:
    bodies = [{"messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0} for text in ASKED]
    chats = [together(one, "/v1/chat/completions", bodies) for one in (pair.ours, pair.theirs)]
    for ours, theirs in zip(*chats, strict=True):
        assert ours["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"]
        assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    said = chats[0][0]["choices"][0]["message"]["content"]
    assert pair.ours.post("/v1/messages", bodies[0])["content"][0]["text"] == said
    asked = {"input": ASKED[0], "max_output_tokens": 16, "temperature": 0}
    assert pair.ours.post("/v1/responses", asked)["output"][0]["content"][0]["text"] == said


def test_a_conversation_that_goes_on_is_computed_from_where_it_was(pair: Pair) -> None:
    """And says what it says without the cache."""
    first: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"{TEXT}\nWhat did he keep?"}],
        "max_tokens": 16,
        "temperature": 0,
    }
    for server in (pair.ours, pair.theirs):
        server.post("/v1/chat/completions", first)
    reply = pair.ours.post("/v1/chat/completions", first)
    assert reply["timings"]["prompt_n"] == 1
    said = reply["choices"][0]["message"]
    messages = [*first["messages"], said, {"role": "user", "content": "And who was on board?"}]
    second = {**first, "messages": messages}
    warm, theirs = pair.post("/v1/chat/completions", second)
    assert warm["timings"]["cache_n"] >= reply["usage"]["total_tokens"] - 1
    assert warm["timings"]["cache_n"] >= theirs["timings"]["cache_n"]
    cold = pair.ours.post("/v1/chat/completions", {**second, "cache_prompt": False})
    assert cold["timings"]["cache_n"] == 0
    assert warm["choices"] == cold["choices"]
    assert warm["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"]


def test_a_prompts_log_probabilities_are_those_of_llama_cpp_python(pair: Pair, exact: Path) -> None:
    """Read as lm-evaluation-harness does: one token more than the prompt's is generated and left out."""
    llama = Llama(str(exact), n_ctx=512, n_threads=1, logits_all=True, flash_attn=False, verbose=False)
    tokens = llama.tokenize(TEXT.encode(), add_bos=False)
    llama.eval(tokens)
    logprobs = Llama.logits_to_logprobs(llama.scores[: len(tokens) - 1])
    llama.close()
    body = {"prompt": [tokens, TEXT], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    for choice in pair.ours.post("/v1/completions", body)["choices"]:
        lists = choice["logprobs"]
        assert "".join(lists["tokens"][:-1]) == TEXT
        assert [TEXT[start:end] for start, end in pairwise(lists["text_offset"])] == lists["tokens"][:-1]
        found = lists["token_logprobs"][1:-1]
        assert found == pytest.approx(
            [float(row[token]) for row, token in zip(logprobs, tokens[1:], strict=True)], abs=LOGPROB_SPREAD
        )
        best = [max(top.values()) for top in lists["top_logprobs"][1:-1]]
        assert best == pytest.approx(logprobs.max(axis=1).tolist(), abs=LOGPROB_SPREAD)
        greedy = sum(one == top for one, top in zip(found, best, strict=True))
        assert 0 < greedy < len(found)


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


async def test_guesses_from_the_text_change_no_token(exact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where guesses are cheap: whether they are made does not depend on how busy the real one is."""
    weights = LlamaLoader().load(ModelSpec("exact", exact, native=NATIVE, engine=GUESSING), lambda _: True)

    async def answers(params: EngineParams) -> list[Reply]:
        runner, machine = weights.runner(), Machine()
        decode = runner.decode

        def timed(entries: Sequence[BatchEntry]) -> bool:
            machine.step(entries)
            return decode(entries)

        with monkeypatch.context() as patch:
            patch.setattr(runner, "decode", timed)
            engine = Engine([runner], params, asyncio.get_running_loop(), machine)
            try:
                return await run(engine, *requests(runner))
            finally:
                await engine.close()

    def requests(runner: Runner) -> list[Request]:
        greedy = SamplingParams(temperature=0.0)
        return [
            Request(
                id=each,
                prompt=runner.vocab.tokenize(each, add_special=True, parse_special=True),
                sampling=greedy,
                max_tokens=60,
            )
            for each in (
                "1. The red fox sleeps.\n2. The red fox eats.\n3. The red fox sleeps.\n4.",
                f"{CONTINUED[2]}    if n < 2:\n",
            )
        ]

    guessed, plain = await answers(GUESSING), await answers(EngineParams())
    assert [reply.text for reply in guessed] == [reply.text for reply in plain]
    assert sum(reply.finished[0].timings.draft_n_accepted for reply in guessed) > 5
    weights.close()


def test_texts_that_mean_the_same_are_near() -> None:
    weights = LlamaLoader().load(
        ModelSpec("mean", SMOLLM2, native=LoadParams(embedding=True, pooling="mean", n_ctx=512)), lambda _: True
    )
    runner = weights.embedding_runner()
    pairs = (
        "What is the capital of France?",
        "Which city is the capital of France?",
        "Tell me how to bake bread with yeast.",
        "How do I bake a loaf of bread?",
        "def add(a, b):\n    return a + b",
        "def plus(x, y):\n    return x + y",
    )
    found = [runner.embed([weights.vocab.tokenize(text, add_special=True, parse_special=True)])[0][0] for text in pairs]
    near = np.corrcoef(np.stack(found))
    np.fill_diagonal(near, -1.0)
    assert list(near.argmax(axis=1)) == [1, 0, 3, 2, 5, 4]
    runner.close()
    weights.close()
