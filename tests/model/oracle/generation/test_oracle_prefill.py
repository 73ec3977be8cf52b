"""A JSON text that the assistant has begun, and a schema: both servers go on with it."""

import json
from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import CHAT

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}


def chat(begun: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": begun}]
    wanted = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    kwargs = {"enable_thinking": False}
    return {
        "messages": messages,
        "temperature": 0,
        "max_tokens": 40,
        "response_format": wanted,
        "chat_template_kwargs": kwargs,
    }


@pytest.mark.parametrize("begun", ["{", '{"city": "R', '{"city": "Paris", "sure": t', '{"city": "Rome", "sure": true}'])
def test_a_schema_holds_for_the_whole_message(demo: Pair, begun: str) -> None:
    for reply in demo.post(CHAT, chat(begun)):
        content = reply["choices"][0]["message"]["content"]
        assert content.startswith(begun)
        assert set(json.loads(content)) == {"city", "sure"}


def test_what_is_no_beginning_of_it_is_left_as_it_is(demo: Pair) -> None:
    """llama-server refuses it."""
    ours, theirs = demo.request("POST", CHAT, chat("Here: "))
    assert theirs.status == 400
    content = ours.json()["choices"][0]["message"]["content"]
    assert set(json.loads(content.removeprefix("Here: "))) == {"city", "sure"}
