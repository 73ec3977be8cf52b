"""Requests to ``/infill`` and ``/completion`` with the fields of llama.vim, llama.vscode and Continue."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from report import LONG, URL, expect_error, step

RESPONSE_FIELDS = [
    "content",
    "timings/prompt_n",
    "timings/predicted_n",
    "truncated",
    "tokens_cached",
    "generation_settings/n_ctx",
]
EXTRA = [{"text": "def other():\n    return 1\n", "filename": "other.py"}]
SAMPLERS = ["top_k", "top_p", "infill"]


def post_request(path: str, body: dict[str, Any]) -> urllib.request.Request:
    """Return a POST like curl's."""
    return urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})


def post(path: str, body: dict[str, Any]) -> Any:
    with urllib.request.urlopen(post_request(path, body), timeout=30) as reply:
        return json.loads(reply.read())


def stream(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with urllib.request.urlopen(post_request(path, body), timeout=30) as reply:
        for line in reply:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                yield json.loads(line[6:])


CACHE_AHEAD = {
    "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": EXTRA, "prompt": "", "n_predict": 0,
    "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip
SUGGESTION: dict[str, Any] = {
    "id_slot": 0, "input_prefix": "# FILL-PLEASE\n", "input_suffix": "\n    return answer\n", "input_extra": EXTRA,
    "prompt": "def one():", "n_predict": 128, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.90, "stream": False,
    "samplers": SAMPLERS, "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
    "response_fields": RESPONSE_FIELDS,
}  # fmt: skip
with step("llama.vim: chunks of other files are cached ahead"):
    assert "content" not in post("/infill", CACHE_AHEAD)
with step("llama.vim: a suggestion"):
    reply = post("/infill", SUGGESTION)
    assert reply["content"] == "answer = 42", reply
    assert reply["timings/predicted_n"] > 0, reply
with step("llama.vim: several suggestions"):
    replies = post("/infill", {**SUGGESTION, "n_cmpl": 3})
    assert [each["content"] for each in replies] == ["answer = 42"] * 3, replies
with step("llama.vscode: a suggestion"):
    body = {key: SUGGESTION[key] for key in SUGGESTION if key not in ("id_slot", "stop", "response_fields")}
    reply = post("/infill", body)
    assert reply["content"] == "answer = 42", reply
    assert "generation_settings" in reply
with step("llama.vscode: its props"), urllib.request.urlopen(f"{URL}/props", timeout=30) as reply:
    assert json.loads(reply.read())["default_generation_settings"]["n_ctx"]
with step("Continue: a completion with the tokens of its own template, streamed"):
    prompt = "<fim_prefix># FILL-PLEASE\ndef one():\n<fim_suffix>\n    return answer\n<fim_middle>"
    body = {
        "prompt": prompt,
        "n_predict": 64,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "stop": ["\n\n"],
        "stream": True,
    }
    parts = list(stream("/completion", body))
    assert "".join(part["content"] for part in parts) == "answer = 42"
    assert parts[-1]["stop"] is True
with step("a cancelled stream"):
    reply = urllib.request.urlopen(post_request("/completion", {"prompt": "NEVER-END", "stream": True}), timeout=30)
    for _ in range(20):
        reply.readline()
    reply.close()
with step("a text above the context: the nearest lines are kept"):
    distant_text = "x = 1\n" * 20_000
    reply = post("/infill", {**SUGGESTION, "input_prefix": distant_text + SUGGESTION["input_prefix"]})
    assert reply["content"] == "answer = 42", reply
with step("a context overflow is reported"):
    with expect_error(urllib.error.HTTPError) as errors:
        post("/completion", {"prompt": LONG})
    assert json.loads(errors[0].read())["error"]["type"] == "exceed_context_size_error"
