"""Constrained decoding with random weights: every reply at a high temperature matches its schema or grammar.

The vocabularies are byte-level BPE and SentencePiece with byte fallback.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import RealServer, llamapool

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {
            "type": "array",
            "items": {"enum": ["é", "b", "c"]},
            "uniqueItems": True,
            "minItems": 2,
            "maxItems": 3,
        },
        "n": {"type": "integer", "minimum": -5, "maximum": 12},
    },
    "required": ["name", "tags", "n"],
    "if": {"properties": {"n": {"minimum": 0}}},
    "then": {"properties": {"name": {"minLength": 1}}},
    "additionalProperties": False,
}
HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module", params=["bpe", "spm"])
def tiny(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[RealServer]:
    """A server with four slots."""
    model = TinyModel(n_vocab=600, tokenizer=request.param)
    with llamapool(gguf_file(gguf_folder, model), "-c", "8192", "-np", "4", "-t", "1") as running:
        yield running


def valid(text: str) -> Any:
    value = json.loads(text)
    jsonschema.validate(value, SCHEMA)
    return value


def streamed_texts(events: list[str]) -> dict[int, str]:
    """Return the content of each choice of a streamed chat completion."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in json.loads(event)["choices"] if event != "[DONE]" else ():
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 3}], ids=["plain", "logprobs"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_every_choice_matches_its_schema(tiny: RealServer, stream: bool, logprobs: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Anything"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
        "max_tokens": 400,
        "n": 2,
        "seed": 7,
        **HOT,
        **logprobs,
    }
    if stream:
        texts = streamed_texts(tiny.events("/v1/chat/completions", {**body, "stream": True}))
    else:
        choices = tiny.post("/v1/chat/completions", body)["choices"]
        texts = {choice["index"]: choice["message"]["content"] for choice in choices}
        assert all(choice["finish_reason"] == "stop" for choice in choices)
        for choice in choices if logprobs else ():
            content = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"])
            assert content.decode() == choice["message"]["content"]
            assert all(len(token["top_logprobs"]) == 3 for token in choice["logprobs"]["content"] if token["bytes"])
    assert sorted(texts) == [0, 1]
    assert all(valid(text) for text in texts.values())


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ({"guided_regex": "[a-cé]{3}-[0-9]+x"}, "[a-cé]{3}-[0-9]+x"),
        ({"guided_choice": ["yes", "no", "pérhaps"]}, "yes|no|pérhaps"),
        ({"grammar": 'root ::= "é" [0-9]{2,4} ("€" | "b")'}, "é[0-9]{2,4}(€|b)"),
        ({"guided_grammar": 'start: "a" NUMBER\nNUMBER: /[1-9]{3}/'}, "a[1-9]{3}"),
    ],
    ids=["regex", "choice", "gbnf", "lark"],
)
def test_replies_match_regexes_choices_and_grammars(tiny: RealServer, field: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        body = {"prompt": "x", "max_tokens": 300, "seed": seed, **HOT, **field}
        choice = tiny.post("/v1/completions", body)["choices"][0]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, choice["text"]), choice["text"]
        else:
            assert "regex" in str(field), choice  # random weights may repeat the unbounded digits until max_tokens


def test_more_concurrent_requests_than_slots_all_match_their_schema(tiny: RealServer) -> None:
    bodies = [{"prompt": f"prompt {n}", "n_predict": 200, "json_schema": SCHEMA, "seed": n, **HOT} for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        texts = [reply["content"] for reply in pool.map(lambda body: tiny.post("/completion", body), bodies)]
    assert len({json.dumps(valid(text)) for text in texts}) > 1


def test_content_after_reasoning_matches_its_schema(default_server: RealServer) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 600,
        "seed": 1,
    }
    message = default_server.post("/v1/chat/completions", body)["choices"][0]["message"]
    assert message["reasoning_content"]
    valid(message["content"])
