"""Thoughts that are ended from outside, by both servers."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import WAIT_QUIETLY
from tests.support.oracle import oracle
from tests.support.real_server import ROOT, llamapool

CHAT = "/v1/chat/completions"
DEMO = ROOT / "models" / "demo.gguf"
N_CTX = 4096  # the model's: thoughts without an end last for seconds, and are ended meanwhile
TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""
"""As that of QwQ and DeepSeek R1: the prompt opens the thoughts."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers on the default model with a template that always lets it think."""
    file = Path(tmp_path_factory.mktemp("template") / "think.jinja")
    file.write_text(TEMPLATE)
    flags = map(str, ("-c", N_CTX, "-np", 1, "-t", 1, "--chat-template-file", file))
    params: dict[str, bool | str] = {"chat_template": TEMPLATE, "use_jinja": True}
    with ExitStack() as stack:
        theirs = oracle(DEMO, n_ctx=N_CTX, n_threads=1, params=params, environment=WAIT_QUIETLY)
        stack.callback(theirs.stop)
        ours = llamapool(DEMO, *flags, environment=WAIT_QUIETLY)
        stack.callback(ours.stop)
        theirs.wait_until_ready()
        ours.wait_until_ready()
        yield Pair(ours, theirs)


def chat(pair: Pair, **more: Any) -> dict[str, Any]:
    """A chat whose model is kept from closing its thoughts."""
    (closing,) = pair.ours.post("/tokenize", {"content": "</think>"})["tokens"]
    return {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "ignore_eos": True,
        "logit_bias": [[closing, -100]],
        "temperature": 0,
        "max_tokens": N_CTX - 100,
        **more,
    }


def delta(stream: HTTPResponse) -> tuple[str, dict[str, Any]]:
    """The id and the delta of the next event, which must not be the last."""
    while not (line := stream.readline()).startswith(b"data: {"):
        assert line.strip() != b"data: [DONE]", "the thoughts were never ended"
    event = json.loads(line.removeprefix(b"data: "))
    return event["id"], event["choices"][0]["delta"]


def test_thoughts_are_ended(pair: Pair) -> None:
    for server in (pair.ours, pair.theirs):
        with server.open_stream(CHAT, chat(pair, reasoning_control=True)) as stream:
            completion, shown = delta(stream)
            while not shown.get("reasoning_content"):
                completion, shown = delta(stream)
            control = {"id": completion, "action": "reasoning_end"}
            assert server.post(CHAT + "/control", control) == {"success": True}
            while not shown.get("content"):
                _, shown = delta(stream)
                assert "</think>" not in str(shown)


def test_a_chat_that_did_not_ask_for_control_cannot_be_controlled(pair: Pair) -> None:
    replies = []
    for server in (pair.ours, pair.theirs):
        with server.open_stream(CHAT, chat(pair)) as stream:
            completion, _ = delta(stream)
            replies.append(server.post(CHAT + "/control", {"id": completion, "action": "reasoning_end"}))
    assert replies[0] == replies[1]
    assert replies[0]["success"] is False
