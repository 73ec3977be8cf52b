"""What is refused: status, type and keys of the error against llama-server's."""

from typing import Any

import pytest

from tests.model.oracle.comparison import Pair

HELLO = [{"role": "user", "content": "hello"}]
SAME: list[tuple[str, str, Any]] = [
    ("GET", "/nowhere", None),
    ("POST", "/v1/completions", {}),
    ("POST", "/v1/completions", {"prompt": ""}),
    ("POST", "/v1/completions", {"prompt": []}),
    ("POST", "/v1/completions", b"{broken"),
    ("POST", "/v1/completions", b'{"prompt": "\xff\xfe"}'),
    ("POST", "/v1/completions", b"[]"),
    ("POST", "/tokenize", {"content": 5}),
    ("POST", "/tokenize", {"content": [["a"]]}),
    ("POST", "/v1/completions", {"prompt": [100000]}),
    ("POST", "/v1/completions", {"prompt": "x", "grammar": "root ::= ("}),
    ("POST", "/v1/completions", {"prompt": "x", "temperature": "hot"}),
    ("POST", "/v1/completions", {"prompt": "x", "repeat_last_n": -2}),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 0}),
    ("POST", "/v1/completions", {"prompt": "x", "n": 1000}),
    ("POST", "/v1/chat/completions", {}),
    ("POST", "/v1/chat/completions", {"messages": "hello"}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user"}]}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}),
    ("POST", "/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "sound"}}),
    ("POST", "/v1/chat/completions", {"messages": HELLO, "top_logprobs": 3}),
    ("POST", "/v1/chat/completions", {"messages": HELLO, "tool_choice": "whatever", "tools": []}),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": HELLO, "add_generation_prompt": True, "continue_final_message": True},
    ),
    ("POST", "/detokenize", {"tokens": "x"}),
    ("POST", "/props", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), SAME, ids=lambda value: str(value)[:60])
def test_errors_have_the_reference_status_and_type(pair: Pair, method: str, path: str, body: object) -> None:
    """And its numeric code, except where OpenAI's clients expect a string."""
    ours, theirs = pair.request(method, path, body)
    assert ours.status == theirs.status, (ours.body[:300], theirs.body[:300])
    if theirs.status != 200:
        mine, other = error_kind(ours.json()), error_kind(theirs.json())
        assert (mine[0], mine[2]) == (other[0], other[2])
        assert path.startswith("/v1/") is isinstance(mine[1], str)
        assert isinstance(mine[1], str) or mine[1] == other[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_has_openais_code(pair: Pair, *, stream: bool) -> None:
    """Agents compact on it; llama-server's code is the status."""
    ours, theirs = pair.request("POST", "/v1/completions", {"prompt": "x " * 2000, "stream": stream})
    assert ours.status == theirs.status == 400
    mine, other = error_kind(ours.json()), error_kind(theirs.json())
    assert (mine[0], mine[2]) == (other[0], other[2])
    assert (mine[1], other[1]) == ("context_length_exceeded", 400)


def error_kind(reply: dict[str, Any]) -> tuple[set[str], int | str, str]:
    """Keys, code and type; ``param`` is OpenAI's, and only Llamapool gives it."""
    error = reply["error"]
    return set(error) - {"param"}, error["code"], error["type"]
