"""The requests to compare, with the parts of the replies that must be equal, and the intended differences."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.media_files import media_file
from tests.model.oracle.comparison import ONLY_ASCII

GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 12, "seed": 7, "logit_bias": ONLY_ASCII, "cache_prompt": False}
TEXT = "the quick brown fox jumps over the lazy dog. the quick brown"
CHAT = [{"role": "user", "content": "hello there"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LORA = [{"id": 0, "scale": 0.5}]
MARKER = "<__media__>"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the page. ``same``: keys whose values must be equal, besides the reply's status and shape.

    ``server``: name of a pair of servers. ``differs``: the reason for an intended difference, which must exist.
    ``setup``: requests that are sent first.
    """

    name: str
    method: str = "POST"
    path: str = "/completion"
    body: Any = None
    same: Sequence[str] = ()
    server: str = "generation"
    differs: str = ""
    setup: Sequence[tuple[str, str, Any]] = ()


def option(name: str, value: Any, *same: str, differs: str = "", **others: Any) -> Row:
    """Return a row for an option of /completion, by default with the same tokens and stop reason in the replies."""
    body = {"prompt": TEXT, "return_tokens": True, **GREEDY, **others, name: value}
    keys = same or ("content", "tokens", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated")
    return Row(name, body=body, same=keys, differs=differs)


def endpoint(name: str, body: Any = None, *same: str, **others: Any) -> Row:
    """Return a row for `name`: a method, a path and an optional remark in parentheses."""
    method, path = name.split(" ")[:2]
    return Row(name, method, path, body, same, **others)


_CODE = "`error.code` is OpenAI's string; OpenAI's SDK compares it"
OPTIONS = (
    option("prompt", TEXT),
    option("prompt", [5, 6, 7, 8]),
    option("prompt", [5, "the fox", 7]),
    option("prompt", {"prompt_string": TEXT}),
    Row("prompt (several)", body={**GREEDY, "prompt": ["a fox", [5, 6]]}),
    option("temperature", 0.7),
    option("dynatemp_range", 0.3, temperature=0.8),
    option("dynatemp_exponent", 1.5, temperature=0.8, dynatemp_range=0.3),
    option("top_k", 5, temperature=0.8),
    option("top_p", 0.5, temperature=0.8),
    option("min_p", 0.2, temperature=0.8),
    option("top_n_sigma", 1.0, temperature=0.8),
    option("typical_p", 0.5, temperature=0.8),
    option("xtc_probability", 0.5, temperature=0.8),
    option("xtc_threshold", 0.2, temperature=0.8, xtc_probability=0.5),
    option("repeat_penalty", 1.5),
    option("repeat_last_n", 8, repeat_penalty=1.5),
    option("presence_penalty", 0.7),
    option("frequency_penalty", 0.7),
    option("dry_multiplier", 0.8),
    option("dry_base", 2.0, dry_multiplier=0.8),
    option("dry_allowed_length", 1, dry_multiplier=0.8),
    option("dry_penalty_last_n", 16, dry_multiplier=0.8),
    option("dry_sequence_breakers", ["q"], dry_multiplier=0.8),
    option("mirostat", 1, temperature=0.8),
    option("mirostat", 2, temperature=0.8),
    option("mirostat_tau", 3.0, mirostat=2, temperature=0.8),
    option("mirostat_eta", 0.3, mirostat=2, temperature=0.8),
    option("adaptive_target", 0.3, temperature=0.8, samplers=["min_p", "temperature", "adaptive_p"]),
    option("adaptive_decay", 0.5, adaptive_target=0.3, temperature=0.8, samplers=["temperature", "adaptive_p"]),
    option("samplers", ["top_k", "temperature", "top_k"], temperature=0.8),
    option("samplers", "kpmt", temperature=0.8),
    option("min_keep", 3, temperature=0.8, top_p=0.01),
    option("seed", 123, temperature=0.9),
    option("ignore_eos", True),
    option("logit_bias", [*ONLY_ASCII, [101, False], ["fox", -2.5]]),
    option("logit_bias", {"101": -100, "fox": 1.5, **{str(token): False for token, _ in ONLY_ASCII}}),
    option("n_predict", 0, differs="no token is generated, as llama-server's README says; llama-server generates one"),
    option("n_predict", 3),
    option("stop", ["e", "zz"]),
    option("n_indent", 1, n_predict=40),
    option("n_keep", 2),
    option("n_discard", 2),
    option("n_cache_reuse", 4),
    option("t_max_predict_ms", 100000),
    option("id_slot", 1),
    option("cache_prompt", True),
    option("return_tokens", False),
    option(
        *("grammar", 'root ::= "ab" [0-9]+ "\\n"'),
        differs="the text is equal; generation ends one token earlier if only an end token can follow",
    ),
    option(
        *("grammar_lazy", True),
        grammar='root ::= "zebra!"',
        grammar_triggers=[{"type": 1, "value": "zebra"}],
    ),
    option("preserved_tokens", ["<s>", "the"]),
    option(
        *("reasoning_budget_tokens", 3),
        reasoning_budget_start_tag="<think>",
        reasoning_budget_end_tags=["</think>"],
        reasoning_budget_message="!",
    ),
    Row(
        "json_schema",
        body={**GREEDY, "prompt": TEXT, "n_predict": 60, "json_schema": SCHEMA},
        same=("content",),
        differs="whitespace: compact JSON, which spends no tokens on spaces",
    ),
    Row("n_probs", body={**GREEDY, "prompt": TEXT, "n_probs": 3}, same=("content", "completion_probabilities")),
    Row(
        "post_sampling_probs",
        body={**GREEDY, "prompt": TEXT, "n_probs": 3, "post_sampling_probs": True, "temperature": 0.8},
        same=("content", "completion_probabilities"),
    ),
    option("lora", LORA),
    Row("n_cmpl", body={**GREEDY, "prompt": TEXT, "n_cmpl": 2}),
    Row(
        "response_fields",
        body={**GREEDY, "prompt": TEXT, "response_fields": ["content", "generation_settings/n_predict", "none"]},
        same=("content", "generation_settings/n_predict"),
    ),
    option("timings_per_token", True),
    option("sse_ping_interval", 5),
    option("return_progress", True),
)

_FILL_SLOT = ("POST", "/completion", {**GREEDY, "prompt": TEXT, "id_slot": 0, "cache_prompt": True})
ENDPOINTS = (
    endpoint("GET /health", None, "status"),
    endpoint("GET /v1/health", None, "status"),
    endpoint("GET /props", None, "total_slots", "chat_template", "bos_token", "eos_token"),
    endpoint("POST /props", {}),
    endpoint("GET /v1/models"),
    endpoint("GET /models"),
    endpoint("GET /metrics"),
    endpoint("POST /completions", {**GREEDY, "prompt": TEXT}, "content"),
    endpoint("POST /v1/completions", {**GREEDY, "prompt": TEXT, "max_tokens": 9}),
    endpoint("POST /v1/chat/completions", {**GREEDY, "messages": CHAT}),
    endpoint("POST /chat/completions", {**GREEDY, "messages": CHAT}),
    endpoint("POST /v1/chat/completions/input_tokens", {"messages": CHAT}, "input_tokens", "object"),
    endpoint("POST /chat/completions/input_tokens", {"messages": CHAT}, "input_tokens", "object"),
    endpoint("POST /v1/chat/completions/control", {"id": "chatcmpl-none", "action": "reasoning_end"}),
    endpoint(
        "POST /infill",
        {**GREEDY, "input_prefix": "def f(", "input_suffix": "return", "prompt": "a"},
        "content",
        "tokens_evaluated",
    ),
    endpoint("POST /tokenize", {"content": TEXT}, "tokens"),
    endpoint(
        "POST /tokenize (with_pieces)", {"content": "a fox é", "with_pieces": True, "add_special": True}, "tokens"
    ),
    endpoint("POST /detokenize", {"tokens": [100, 101, 102]}, "content"),
    endpoint("POST /apply-template", {"messages": CHAT}, "prompt"),
    endpoint("GET /slots", setup=(_FILL_SLOT,)),
    endpoint(
        *("POST /slots/0?action=save", {"filename": "one.bin"}, "id_slot", "filename", "n_saved"), setup=(_FILL_SLOT,)
    ),
    endpoint("POST /slots/1?action=restore", {"filename": "one.bin"}, "id_slot", "filename", "n_restored"),
    endpoint("POST /slots/1?action=erase", None, "id_slot", "n_erased"),
    endpoint("GET /lora-adapters"),
    endpoint("POST /lora-adapters", LORA, "success"),
    endpoint(
        "POST /v1/responses",
        {"input": "hello there", "max_output_tokens": 8, "temperature": 0, "logit_bias": ONLY_ASCII},
        "status",
        differs="`incomplete` at the token limit, as OpenAI; llama-server says `completed`",
    ),
    endpoint("POST /v1/responses/input_tokens", {"input": "hello there"}, "input_tokens"),
    endpoint("POST /v1/messages", {"messages": CHAT, "max_tokens": 8, "temperature": 0}, "stop_reason", "role", "type"),
    endpoint("POST /v1/messages/count_tokens", {"messages": CHAT}, "input_tokens"),
    endpoint("POST /embedding", {"content": ["a fox", "b"]}, server="embedding"),
    endpoint("POST /embeddings", {"content": "a fox"}, server="embedding"),
    endpoint("POST /v1/embeddings", {"input": ["a fox"]}, server="embedding"),
    endpoint("POST /v1/embeddings (base64)", {"input": [[5, 6], "b"], "encoding_format": "base64"}, server="embedding"),
    endpoint("POST /embedding (embd_normalize)", {"content": "b", "embd_normalize": 1}, server="embedding"),
    *(
        Row(f"POST {path}", path=path, body={"query": "a", "documents": ["b c", "a"], "top_n": 1}, server="reranking")
        for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
    ),
    endpoint("POST /rerank (TEI)", {"query": "a", "texts": ["b c", "a"]}, server="reranking"),
)

INVALID = (
    Row("no prompt", body={"n_predict": 3}),
    Row("a temperature that is not a number", body={**GREEDY, "prompt": "a", "temperature": "hot"}),
    Row("an invalid grammar", body={**GREEDY, "prompt": "a", "grammar": "root ::= ("}),
    Row(
        "samplers that are not a list",
        body={**GREEDY, "prompt": "a", "samplers": 3},
        differs="an option of the wrong type is an error, not ignored",
    ),
    Row("infill without a suffix", path="/infill", body={"input_prefix": "a"}),
    Row("embeddings from a generating model", path="/v1/embeddings", body={"input": "a"}, differs=_CODE),
    Row("rerank with a generating model", path="/rerank", body={"query": "a", "documents": ["b"]}),
    Row("a file name outside the folder", path="/slots/0?action=save", body={"filename": "../x"}),
    Row("an unknown action", path="/slots/0?action=copy", body={"filename": "x"}),
    Row(
        "an unknown slot",
        path="/slots/99?action=erase",
        body={},
        differs="an unknown slot is an error; llama-server takes another slot",
    ),
    Row("no documents", path="/rerank", body={"query": "a"}, server="reranking"),
    Row("no input", path="/v1/embeddings", body={}, server="embedding", differs=_CODE),
    Row("an unknown path", "GET", "/nothing"),
)

PNG, JPEG, WEBP, WAV = (base64.b64encode(media_file(f"tiny.{form}")).decode() for form in ("png", "jpg", "webp", "wav"))


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a chat body whose message has a text and `parts`."""
    content = [{"type": "text", "text": "Look: "}, *parts]
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 6,
        "temperature": 0,
        "cache_prompt": False,
    }


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def vision(name: str, path: str, body: Any, *same: str, differs: str = "") -> Row:
    """Return a row for a model with an image projector."""
    return Row(name, path=path, body=body, same=same, server="vision", differs=differs)


_MARKED = {"prompt_string": f"What is {MARKER} and {MARKER} then", "multimodal_data": [PNG, JPEG]}
_ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
_RESPONSES = [{"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]}]
_CHAT, _COUNT = "/v1/chat/completions", "/v1/chat/completions/input_tokens"
_FFMPEG = "llama-server needs the program ffmpeg; Llamapool needs the extra `pictures`"
MEDIA = (
    vision(
        *("`multimodal_data` in a prompt", "/completion"),
        {**GREEDY, "prompt": _MARKED, "return_tokens": True},
        *("content", "tokens", "tokens_evaluated", "prompt"),
    ),
    vision("`image_url`: a `data:` URL", _CHAT, chat(image(f"data:image/png;base64,{PNG}")), "usage"),
    vision("`image_url`: plain base64", _CHAT, chat(image(JPEG)), "usage"),
    vision("token count of two images", _COUNT, chat(image(PNG), image(JPEG)), "input_tokens"),
    vision("token count of Anthropic's `image`", "/v1/messages/count_tokens", chat(_ANTHROPIC), "input_tokens"),
    vision("token count of `input_image`", "/v1/responses/input_tokens", {"input": _RESPONSES}, "input_tokens"),
    Row("GET /props", "GET", "/props", same=("modalities", "media_marker"), server="vision"),
    vision("more markers than images", "/completion", {**GREEDY, "prompt": {**_MARKED, "multimodal_data": [PNG]}}),
    vision("invalid base64", _CHAT, chat(image("data:image/png;base64,!")), differs=_CODE),
    vision("a media type that is not an image", _CHAT, chat(image("data:text/html;base64,aGk=")), differs=_CODE),
    vision("a file that is not an image", _CHAT, chat(image("aGVsbG8gd29ybGQ=")), differs=_CODE),
    vision(
        *("audio for a vision model", _CHAT),
        chat({"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}),
        differs="400 instead of llama-server's 500",
    ),
    vision("WebP", _CHAT, chat(image(WEBP)), differs=_FFMPEG),
)

TABLES = (OPTIONS, ENDPOINTS, INVALID, MEDIA)
"""The order matters: some endpoints change the state of their server."""
