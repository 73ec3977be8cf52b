"""An invalid body is a 400 that names its field, in the format of the endpoint's API.

`tests/unit/dialects/bodies.txt` covers invalid values of single fields. The tables here cover other mistakes.
"""

from typing import Any

from server.serving.batch_runner import read_lines
from tests.api.conftest import Serve
from tests.support.fakes import FakeLoader

NATIVE, COMPLETIONS = "/completion", "/v1/completions"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OLLAMA_CHAT, OLLAMA_GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
HI = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f"}
LARK = {"type": "grammar", "syntax": "lark", "definition": r"start: /\bx/"}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits.", "format": LARK}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [HI]},
    MESSAGES: {"model": "demo", "max_tokens": 9, "messages": [HI]},
    RESPONSES: {"input": "Hi"},
    OLLAMA_CHAT: {"model": "demo", "messages": [HI]},
    OLLAMA_GENERATE: {"model": "demo", "prompt": "Hi"},
    EMBED: {"model": "embedder"},
    NATIVE: {"prompt": "Hi", "n_predict": 2},
    COMPLETIONS: {"prompt": "Hi"},
}
"""A valid body for each path. A row of a table changes some fields."""
MODELS = {
    "demo": {"path": "demo.gguf", "load": "startup", "chat_template": "chatml"},
    "embedder": {"path": "embedder.gguf", "load": "startup", "embedding": True, "pooling": "mean"},
}


INVALID: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"temperature": "hot"}, "temperature"),
    (CHAT, {"grammar": "root ::= ("}, "grammar"),
    (CHAT, {"json_schema": {"type": "nonsense"}}, "json_schema.type"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.image"),
    (MESSAGES, {"messages": [{"role": "user", "content": [PDF]}]}, "messages.0.content.0.document"),
    (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
        "output_config.format.schema.type",
    ),
    (MESSAGES, {"id_slot": 99}, "id_slot"),
    (
        RESPONSES,
        {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [FUNCTION] * 1025}},
        "tool_choice.tools",
    ),
    (RESPONSES, {"previous_response_id": "resp_none"}, "previous_response_id"),
    (OLLAMA_CHAT, {"messages": [HI | {"images": ["aGk="]}]}, "messages.0.images.0"),
    (OLLAMA_CHAT, {"format": {"type": "nothing"}}, "format"),
    (OLLAMA_CHAT, {"top_logprobs": 21}, "top_logprobs"),
    (OLLAMA_CHAT, {"messages": [HI | {"content": "x" * 9000}]}, "exceeds the available context"),
    (OLLAMA_GENERATE, {"template": "{{ .Prompt }}"}, "template"),
    (OLLAMA_GENERATE, {"raw": True, "system": "Be"}, "system: raw mode"),
    (OLLAMA_GENERATE, {"images": ["aGk="]}, "images.0"),
    (OLLAMA_GENERATE, {"raw": True, "images": ["aGk="]}, "images.0"),
    (EMBED, {"input": 5}, "invalid input type"),
    (EMBED, {"input": ["a", 5]}, "invalid input type"),
    (EMBED, {"input": "a", "keep_alive": "soon"}, "keep_alive"),
    (EMBED, {"input": "a", "options": 5}, "options"),
    (EMBED, {"input": "a", "truncate": "yes"}, "truncate"),
    (NATIVE, {"speculative.n_max": -1}, "speculative.n_max"),
    (NATIVE, {"speculative.n_min": "2"}, "speculative.n_min"),
    (NATIVE, {"speculative.p_min": True}, "speculative.p_min"),
    (NATIVE, {"reasoning_budget_tokens": 3}, "reasoning_budget_tokens"),
    (COMPLETIONS, {"thinking_budget_tokens": 3}, "thinking_budget_tokens"),
    (CHAT, {"thinking_budget": 3, "reasoning_budget_message": "</think>"}, "reasoning_budget_message"),
    (CHAT, {"thinking_budget": 3, "reasoning_budget_message": "no</s>"}, "reasoning_budget_message"),
    (CHAT, {"n": 129}, "n"),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "x"}}}},
        "text.format.schema.type",
    ),
    (RESPONSES, {"tools": [CUSTOM]}, "tools.0.format"),
    (RESPONSES, {"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
    (RESPONSES, {"conversation": "conv_unknown"}, "conversation"),
    (MESSAGES, {"messages": [HI | {"content": "x" * 9000}]}, "prompt is too long: "),
    ("/v1/chat/completions/input_tokens", {"messages": "hi"}, "messages"),
    ("/v1/responses/input_tokens", {"input": 5}, "input"),
    ("/tokenize", {"prompt": {"a": 1}}, "prompt.prompt_string"),
    ("/detokenize", {"tokens": [1, 99999]}, "tokens.1"),
]


async def test_invalid_body_is_a_400_that_names_the_field(serve: Serve) -> None:
    async with serve(FakeLoader(n_ctx_seq=2048), models=MODELS) as api:
        for path, fields, field in INVALID:
            for stream in ({"stream": False}, {"stream": True}):
                reply = await api.expect(f"POST {path}", VALID.get(path, {}) | fields | stream, 400)
                error = reply.json()["error"]
                if path.startswith("/api"):
                    assert field in error, (path, fields)
                    continue
                assert error["type"] == "invalid_request_error"
                assert field in error["message"] if path == MESSAGES else error["param"] == field, (path, fields)


MESSAGE_PARTS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": {"type": None}}, "but got: null"),
    (CHAT, {"thinking": {"type": True}}, "got true"),
    (NATIVE, {"samplers": [None]}, "unknown sampler null;"),
    (NATIVE, {"json_schema": {"type": None}}, "json_schema.type is not a valid JSON Schema: null should be"),
    (NATIVE, {"json_schema": {"minLength": 1e10}}, "json_schema: the keyword 'minLength' cannot be enforced: 1e+10 is"),
    (NATIVE, {"json_schema": {"items": {"type": "number", "minimum": 1e40}}}, "items: the keyword 'minimum'"),
    (OLLAMA_CHAT, {"format": True}, "not true"),
]


async def test_errors_show_values_as_json_and_name_keywords(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        for path, fields, part in MESSAGE_PARTS:
            await api.expect(f"POST {path}", VALID[path] | fields, 400, part)


async def test_deeply_nested_values_are_a_400(serve: Serve) -> None:
    """The limit of depth also holds for values that are only stored, returned to the client, or ignored."""
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    item = HI | {"x": deep}
    result = {"type": "web_search_tool_result", "tool_use_id": "a", "content": deep}
    message = VALID[MESSAGES] | {"messages": [{"role": "user", "content": [result]}]}
    async with serve(FakeLoader(n_ctx_seq=2048), models=MODELS) as api:
        for path, fields, param in (
            (RESPONSES, {"input": [item]}, "input"),
            (RESPONSES, {"input": "Hi", "tools": [{"type": "x", "x": deep}], "stream": True}, "tools"),
            ("/v1/conversations", {"items": [item]}, "items"),
            (MESSAGES, message, "messages.0.content.0.content"),
            (f"{MESSAGES}/batches", {"requests": [{"custom_id": "a", "params": {"x": deep}}]}, "requests.0.params"),
        ):
            await api.expect(f"POST {path}", fields, 400, f"{param}: is nested too deeply")
    nested = "[" * 300 + "]" * 300
    line = f'{{"custom_id": "a", "method": "POST", "url": "{CHAT}", "body": {{"x": {nested}}}}}'
    assert read_lines(line.encode(), CHAT).errors[0]["message"] == "body: is nested too deeply"
