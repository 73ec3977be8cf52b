"""The default configuration on the model that ships: a sample that guards its scores, with margins.

`extras/demo-model/evaluate.py` scores hundreds of held-out cases; these questions are few, so a floor below the
measured scores is asserted, and only what must never break is asserted strictly.
"""

import json
from collections.abc import Iterator
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.real_server import RealServer, llamapool, llamapool_config

ROOT = Path(__file__).resolve().parents[3]
MAX_TOTAL_BYTES = 16_000_000
MAX_DEMO_BYTES = 8_000_000
FACTS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the opposite of hot?": "cold",
    "What is the opposite of big?": "small",
    "What colour is the sky?": "blue",
    "What colour is grass?": "green",
    "Which day comes after Monday?": "Tuesday",
    "What is Llamapool?": "server",
    "What sound does a dog make?": "woof",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def demo() -> Iterator[RealServer]:
    """`config/default.yaml` as it ships, on a free port."""
    with llamapool_config(ROOT / "config" / "default.yaml", "-t", "1") as running:
        yield running


def ask(server: RealServer, content: str, **options: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 120} | options
    choice: dict[str, Any] = server.post("/v1/chat/completions", body)["choices"][0]
    return choice


def test_the_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "models").glob("*.gguf")}
    assert sizes["demo.gguf"] <= MAX_DEMO_BYTES
    assert sum(sizes.values()) <= MAX_TOTAL_BYTES


def test_it_knows_the_capital_of_france_and_most_other_facts(demo: RealServer) -> None:
    answers = {question: ask(demo, question) for question in FACTS}
    assert "Paris" in answers["What is the capital of France?"]["message"]["content"]
    right = [q for q, word in FACTS.items() if word.lower() in answers[q]["message"]["content"].lower()]
    assert len(right) >= len(FACTS) * 0.9, f"only {right}"


def test_it_stops_by_itself_and_does_not_think_unless_asked(demo: RealServer) -> None:
    for question in ("Hello!", *list(FACTS)[:4]):
        choice = ask(demo, question)
        assert choice["finish_reason"] == "stop"
        assert "reasoning_content" not in choice["message"]
    thinking = ask(demo, "What is the capital of France?", chat_template_kwargs={"enable_thinking": True})
    assert thinking["message"]["reasoning_content"]
    assert "Paris" in thinking["message"]["content"]


def test_it_calls_the_tool_that_fits(demo: RealServer) -> None:
    choice = ask(demo, "What is the weather in Paris?", tools=[WEATHER])
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Paris"}


def test_it_answers_without_a_tool_what_needs_none(demo: RealServer) -> None:
    for question in ("Hello!", "What is the capital of France?"):
        choice = ask(demo, question, tools=[WEATHER])
        assert choice["finish_reason"] == "stop", choice
        assert "tool_calls" not in choice["message"]


def test_it_remembers_a_name(demo: RealServer) -> None:
    said = ["My name is Anna.", "Nice to meet you, Anna!", "What is my name?"]
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), said, strict=True)]
    assert "Anna" in ask(demo, "", messages=messages)["message"]["content"]


def test_json_schema_holds_on_a_real_model(demo: RealServer) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
        "required": ["capital", "sure"],
        "additionalProperties": False,
    }
    format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    content = ask(demo, "What is the capital of France?", response_format=format_)["message"]["content"]
    assert set(json.loads(content)) == {"capital", "sure"}


def test_it_fills_in_the_middle(demo: RealServer) -> None:
    prompt = "<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n<|fim_middle|>"
    reply = demo.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 20})
    assert "a + b" in reply["choices"][0]["text"]


def test_the_default_configuration_embeds_too(demo: RealServer) -> None:
    texts = ["What is the capital of France?", "Which city is the capital of France?", "Tell me a story about a fox."]
    for name in ("demo-embed", "text-embedding-3-small", "text-embedding-ada-002", None):
        reply = demo.post("/v1/embeddings", {"input": texts, "model": name})
        one, same, other = (np.array(entry["embedding"]) for entry in reply["data"])
        assert one @ same > one @ other + 0.2
    for name in ("demo", "gpt-4o-mini", "gpt-4o", None):
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1, "model": name}
        assert demo.post("/v1/chat/completions", body)["model"] == "demo"


def test_a_paraphrase_is_nearer_than_another_question(demo: RealServer) -> None:
    texts = ["What is the capital of France?", "Name the capital of France.", "How many legs does a spider have?"]
    reply = demo.post("/v1/embeddings", {"model": "demo-embed", "input": texts})
    first, paraphrase, other = (item["embedding"] for item in reply["data"])
    assert sum(map(mul, first, paraphrase)) > sum(map(mul, first, other))


def test_the_reranker_puts_the_answer_first() -> None:
    documents = ["A spider has 8 legs.", "The capital of Italy is Rome.", "The capital of France is Paris."]
    with llamapool(ROOT / "models" / "demo-rerank.gguf", "--reranking", "-t", "1") as server:
        reply = server.post("/rerank", {"query": "What is the capital of France?", "documents": documents})
    assert reply["results"][0]["index"] == 2
