"""Field by field: the keys and types of every reply against llama-server's. What differs is listed with its reason."""

from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded, shape_differences

GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logit_bias": ONLY_ASCII}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the fox"}),
        ("/v1/completions", {"prompt": "the fox", "logprobs": True}),
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {"messages": HELLO, "n": 2}),
        ("/v1/chat/completions", {"messages": HELLO, "verbose": False, "return_tokens": True}),
    ],
)
def test_generation_replies(pair: Pair, path: str, body: dict[str, Any]) -> None:
    ours, theirs = pair.post(path, {**GREEDY, **body})
    assert shape_differences(ours, theirs) == set()


def test_openais_lists_stand_beside_llama_servers_log_probabilities(pair: Pair) -> None:
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "prompt": "the fox", "logprobs": 2})
    lists = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    assert shape_differences(ours, theirs) == {f"+choices.0.logprobs.{name}" for name in lists}


def test_props(pair: Pair) -> None:
    ours, theirs = pair.get("/props")
    assert shape_differences(ours, theirs) == {"+chat_template_caps.supports_thinking", "+memory"}
    assert ours["chat_template_caps"].items() >= theirs["chat_template_caps"].items()
    for name in ("total_slots", "model_alias", "model_ftype", "chat_template", "bos_token", "eos_token", "modalities"):
        assert ours[name] == theirs[name], name
    mine, other = (props["default_generation_settings"] for props in (ours, theirs))
    assert mine["n_ctx"] == other["n_ctx"]
    assert rounded(mine["params"]) == rounded(other["params"])


def test_a_slot_that_has_done_its_work(pair: Pair) -> None:
    body = {"prompt": "what a slot has done", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "id_slot": 5}
    pair.post("/v1/completions", body)
    ours, theirs = (slots[5] for slots in pair.get("/slots"))
    assert shape_differences(ours, theirs) == {"+n_checkpoints"}
    assert rounded({**ours, "id_task": 0}) == rounded({**theirs, "id_task": 0, "n_checkpoints": 0})
