"""Field by field: the keys and types of every reply against llama-server's. What differs is listed with its reason."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded, shape_differences
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import TinyModel, gguf_file

LONG = 8192  # tokens
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


def test_models(pair: Pair) -> None:
    """A model's entry is the same whether it is alone or one of several, as in llama-server's router."""
    ours, theirs = pair.get("/v1/models")
    router = {"+data.0.status", "+data.0.can_remove", "+data.0.source"}
    assert shape_differences(ours, theirs) == router | {"+data.0.meta.memory"}
    assert ours["data"][0]["id"] == theirs["data"][0]["id"]
    assert ours["data"][0]["meta"].items() >= theirs["data"][0]["meta"].items()


def test_slots(tmp_path: Path) -> None:
    """A busy slot is shown as llama-server shows it. It is busy for so long that it is when they are asked for."""
    body = {"prompt": "run", "max_tokens": LONG, "ignore_eos": True}
    shown = []
    with ExitStack() as stack:
        pair = start_pair(stack, gguf_file(tmp_path, TinyModel(n_ctx=2 * LONG)), n_ctx=8 * 2 * LONG)
        for server in (pair.ours, pair.theirs):
            with server.open_stream("/v1/completions", body):
                shown.append(server.get("/slots"))
    busy = [next(slot for slot in slots if slot["is_processing"]) for slots in shown]
    assert shape_differences(*busy) == {"+n_checkpoints"}
    assert [len(slots) for slots in shown] == [8, 8]


def test_a_slot_that_has_done_its_work(pair: Pair) -> None:
    body = {"prompt": "what a slot has done", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "id_slot": 5}
    pair.post("/v1/completions", body)
    ours, theirs = (slots[5] for slots in pair.get("/slots"))
    assert shape_differences(ours, theirs) == {"+n_checkpoints"}
    assert rounded({**ours, "id_task": 0}) == rounded({**theirs, "id_task": 0, "n_checkpoints": 0})


def test_health(pair: Pair) -> None:
    for path in ("/health", "/v1/health"):
        ours, theirs = pair.get(path)
        assert ours == theirs | {"slots_idle": 8, "slots_processing": 0}
