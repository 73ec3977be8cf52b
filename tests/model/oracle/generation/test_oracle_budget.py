"""Thoughts whose budget is spent: both servers end them at the same token and go on alike."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.conftest import CHAT

QUESTIONS = ("What is the capital of France?", "Add 17 and 25.")


def chat(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": 60, **more}


def message(reply: Any) -> tuple[str, str, int]:
    (choice,) = reply["choices"]
    said = choice["message"]
    return said.get("reasoning_content", "").strip(), said["content"].strip(), reply["usage"]["completion_tokens"]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("budget", [1, 2, 5, 9, 1000])
def test_thoughts_end_at_the_same_token(thinking: Pair, question: str, budget: int) -> None:
    ours, theirs = thinking.post(CHAT, chat(question, thinking_budget_tokens=budget))
    assert message(ours) == message(theirs)
    if budget < 10:
        assert message(ours)[0].endswith("That is enough.")


def test_native_completions_name_the_tags_themselves(thinking: Pair) -> None:
    """A model that does nothing but open thoughts; each of them has a budget of its own."""
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>"]}
    body = {"prompt": "Well", "temperature": 0, "n_predict": 24, "logit_bias": [["<think>", 100]]}
    body |= {"reasoning_budget_tokens": 5, "reasoning_budget_message": " Well.", **tags, "return_tokens": True}
    ours, theirs = thinking.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["content"].count(" Well.</think>") > 1
