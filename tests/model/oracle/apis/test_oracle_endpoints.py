"""Metrics, HEAD, OPTIONS and tokenization compared with llama-server."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

CHAT = "/v1/chat/completions"


def descriptions(text: str) -> dict[str, tuple[str, str]]:
    """Return type and help of each metric of llama-server."""
    lines = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# ")]
    helps = {name: text for _, kind, name, text in lines if kind == "HELP"}
    types = {name: text for _, kind, name, text in lines if kind == "TYPE"}
    return {name: (types[name], helps[name]) for name in types if name.startswith("llamacpp:")}


def test_metrics_have_every_name_type_and_help(pair: Pair) -> None:
    ours, theirs = (descriptions(reply.body.decode()) for reply in pair.request("GET", "/metrics"))
    assert ours == theirs


def values(text: str) -> dict[str, float]:
    """Return llama-server's metrics, which have no labels."""
    samples = [line.split(" ") for line in text.splitlines() if line.startswith("llamacpp:")]
    return {name: float(value) for name, value in samples}


COUNTS = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")


def test_metrics_of_one_model_count_the_same_tokens(pair: Pair) -> None:
    def scrape() -> list[dict[str, float]]:
        replies = (pair.ours.request("GET", "/metrics?model=tiny"), pair.theirs.request("GET", "/metrics"))
        return [values(reply.body.decode()) for reply in replies]

    before = scrape()
    assert before[0].keys() == before[1].keys()
    prompt = "Seventeen tokens, which no other test has sent"
    body = {"prompt": prompt, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "id_slot": 3}
    for cached in (False, True):  # the first request reuses nothing of other tests, the second its whole prompt
        pair.post("/v1/completions", {**body, "cache_prompt": cached})
    after = scrape()
    counts = [{n: b["llamacpp:" + n] - a["llamacpp:" + n] for n in COUNTS} for a, b in zip(before, after, strict=True)]
    assert counts[0] == counts[1]
    for metrics in after:
        assert metrics["llamacpp:predicted_tokens_seconds"] > 0
        assert metrics["llamacpp:prompt_tokens_seconds"] > 0
    _, theirs = scrape()  # without requests since the last scrape; Llamapool's averages do not depend on scrapes
    assert (theirs["llamacpp:predicted_tokens_seconds"], theirs["llamacpp:prompt_tokens_seconds"]) == (0, 0)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/props", "/slots", "/metrics", "/nope"])
def test_replies_to_head_are_equal(pair: Pair, path: str) -> None:
    ours, theirs = pair.request("HEAD", path)
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert ours.headers["content-type"].startswith(theirs.headers["content-type"])


@pytest.mark.parametrize("path", ["/health", CHAT, "/tokenize", "/nope"])
def test_replies_to_options_are_equal(pair: Pair, path: str) -> None:
    origin = {"Origin": "http://x.y", "Access-Control-Request-Method": "POST"}
    ours, theirs = (server.request("OPTIONS", path, headers=origin) for server in (pair.ours, pair.theirs))
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    for name, value in theirs.headers.items():
        if name.startswith("access-control-"):
            assert ours.headers[name] == value


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": None},
        {},
        {"content": "x", "with_pieces": True, "add_special": True, "parse_special": False},
        {"content": [1, "a"], "add_special": True},
        {"content": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_replies_to_tokenize_and_detokenize_are_equal(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """If llama-server fails, Llamapool replies with 400 or without tokens."""
    ours, theirs = pair.request("POST", path, body)
    if theirs.status == 200:
        assert (ours.status, ours.json()) == (theirs.status, theirs.json())
    else:
        assert ours.status in (200, 400)
