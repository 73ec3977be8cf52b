"""The smaller endpoints against llama-server's: counting tokens, control, properties, metrics, HEAD and OPTIONS."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

CHAT = "/v1/chat/completions"


def metrics(text: str) -> dict[str, tuple[str, str]]:
    """Each of llama-server's names with its type and help."""
    found: dict[str, tuple[str, str]] = {}
    lines = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# ")]
    helps = {name: text for _, kind, name, text in lines if kind == "HELP"}
    for _, kind, name, text in lines:
        if kind == "TYPE" and name.startswith("llamacpp:"):
            found[name] = (text, helps[name])
    return found


def test_metrics_have_every_name_type_and_help(pair: Pair) -> None:
    ours, theirs = (metrics(reply.body.decode()) for reply in pair.request("GET", "/metrics"))
    assert ours == theirs


def values(text: str) -> dict[str, float]:
    """The samples without labels."""
    samples = [line.split(" ") for line in text.splitlines() if line.startswith("llamacpp:")]
    return {name: float(value) for name, value in samples}


COUNTS = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")


def test_one_models_metrics_are_llama_servers_text_and_count_the_same(pair: Pair) -> None:
    def scrape() -> list[dict[str, float]]:
        replies = (pair.ours.request("GET", "/metrics?model=tiny"), pair.theirs.request("GET", "/metrics"))
        return [values(reply.body.decode()) for reply in replies]

    before = scrape()
    assert before[0].keys() == before[1].keys()
    prompt = "Seventeen tokens, which no other test has sent"
    body = {"prompt": prompt, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "id_slot": 3}
    for cached in (False, True):  # the first one finds nothing that other tests have left, the second its own prompt
        pair.post("/v1/completions", {**body, "cache_prompt": cached})
    after = scrape()
    grown = [{n: b["llamacpp:" + n] - a["llamacpp:" + n] for n in COUNTS} for a, b in zip(before, after, strict=True)]
    assert grown[0] == grown[1]
    for found in after:
        assert found["llamacpp:predicted_tokens_seconds"] > 0
        assert found["llamacpp:prompt_tokens_seconds"] > 0
    _, theirs = scrape()  # nothing ran since; ours are averages that no scrape ends (test_collector.py)
    assert (theirs["llamacpp:predicted_tokens_seconds"], theirs["llamacpp:prompt_tokens_seconds"]) == (0, 0)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/props", "/slots", "/metrics", "/nope"])
def test_head(pair: Pair, path: str) -> None:
    ours, theirs = pair.request("HEAD", path)
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert ours.headers["content-type"].startswith(theirs.headers["content-type"])


@pytest.mark.parametrize("path", ["/health", CHAT, "/tokenize", "/nope"])
def test_options(pair: Pair, path: str) -> None:
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
def test_bodies_that_tokenize_takes_or_refuses(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """What llama-server takes gets the same reply; where it fails, Llamapool says 400 or finds no tokens."""
    ours, theirs = pair.request("POST", path, body)
    if theirs.status == 200:
        assert (ours.status, ours.json()) == (theirs.status, theirs.json())
    else:
        assert ours.status in (200, 400)
