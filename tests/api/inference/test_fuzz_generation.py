"""Random bodies for every generating endpoint: each reply is a success or a 4xx error in the API's shape."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.dialects.chat.parse import ChatBody
from server.dialects.completions.parse import CompletionBody
from server.dialects.messages.parse import MessagesBody
from server.dialects.native.parse import InfillBody, NativeBody
from server.dialects.ollama.parse import OllamaChatBody, OllamaGenerateBody
from server.dialects.responses.parse import ResponsesBody
from tests.api.conftest import Serve
from tests.support.sampling import EXAMPLES_SHARE

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
LIKELY = st.sampled_from(
    [0, 1, -1, 2, 0.5, 1e30, True, False, "", "a", "auto", "required", [], {}, [1], ["a"], [[65, 1.0]], {"65": 1}]
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional={"content": st.text(max_size=9) | JSON, "tool_calls": JSON, "name": st.text(max_size=3) | JSON},
)


def bodies(schema: Any, required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of bodies with all `required` fields and up to four others of the model `schema`."""
    names = sorted(set(schema.model_fields) - {*required, "max_tokens", "n_predict", "max_completion_tokens"})
    some = st.dictionaries(st.sampled_from(names), JSON | LIKELY, max_size=4)
    return st.builds(lambda a, b: {"max_tokens": 2, **a, **b}, some, st.fixed_dictionaries(required))


HI = st.just([{"role": "user", "content": "Hi"}])
CHAT = bodies(ChatBody, {"messages": HI | HI | st.lists(MESSAGE, max_size=3) | JSON})
COMPLETION = bodies(CompletionBody, {"prompt": st.text(max_size=9) | JSON | LIKELY})
BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])
        | st.sampled_from(["document", "search_result", "server_tool_use", "x_tool_result", "compaction"])
        | st.text(max_size=9)
    },
    optional={
        **dict.fromkeys(("text", "thinking", "id", "name", "input", "tool_use_id", "content", "title"), JSON),
        "source": st.fixed_dictionaries({"type": st.sampled_from(["text", "content", "url"])}) | JSON,
    },
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(BLOCK, max_size=3) | JSON}
)
MESSAGES = bodies(MessagesBody, {"messages": HI | HI | st.lists(TURN, max_size=3) | JSON})
OLLAMA_OPTIONS = st.dictionaries(
    st.sampled_from(["top_k", "seed", "stop", "num_ctx", "x"]), JSON | LIKELY, max_size=2
).map(lambda options: {"num_predict": 2, **options})
OLLAMA_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "System", "tool"]) | st.text(max_size=3)},
    optional={
        **dict.fromkeys(("content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"), JSON | LIKELY)
    },
)
OLLAMA = bodies(
    OllamaChatBody, {"messages": HI | st.lists(OLLAMA_MESSAGE, max_size=3) | JSON, "options": OLLAMA_OPTIONS}
)
OLLAMA_TEXT = bodies(OllamaGenerateBody, {"prompt": st.text(max_size=9) | JSON, "options": OLLAMA_OPTIONS | JSON})
TOKENS = st.dictionaries(st.sampled_from(["content", "tokens", "add_special", "with_pieces", "model"]), JSON)
NATIVE = bodies(NativeBody, {"prompt": st.text(max_size=9) | JSON | LIKELY})
INFILL = bodies(
    InfillBody, {"input_prefix": st.text(max_size=9) | JSON, "input_suffix": st.text(max_size=9) | JSON | LIKELY}
)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"])},
    optional={"role": st.sampled_from(["user", "assistant", "system"])}
    | dict.fromkeys(("content", "summary", "output", "call_id", "name", "arguments", "id"), JSON),
)
RESPONSES = bodies(ResponsesBody, {"input": st.just("Hi") | st.lists(ITEM, max_size=3) | JSON})
REQUEST = st.one_of(
    st.tuples(st.sampled_from(["/v1/responses", "/v1/responses/input_tokens"]), RESPONSES),
    st.tuples(st.sampled_from(["/completion", "/completions"]), NATIVE),
    st.tuples(st.just("/infill"), INFILL),
    st.tuples(st.sampled_from(["/v1/chat/completions", "/apply-template"]), CHAT),
    st.tuples(st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]), MESSAGES),
    st.tuples(st.just("/v1/completions"), COMPLETION),
    st.tuples(st.just("/api/chat"), OLLAMA),
    st.tuples(st.just("/api/generate"), OLLAMA_TEXT),
    st.tuples(st.sampled_from(["/tokenize", "/detokenize"]), TOKENS),
)


def check(reply: httpx.Response) -> None:
    """Assert that `reply` is a success or a client error in the format of OpenAI, Anthropic or Ollama."""
    if reply.status_code == 200:
        assert reply.content
        return
    assert 400 <= reply.status_code < 500, reply.text
    body = reply.json()
    error = body["error"]
    if isinstance(error, str):
        assert list(body) == ["error"]
        return
    if body.get("type") == "error":
        assert set(error) == {"message", "type"}
        return
    assert set(error) >= {"code", "message", "type"}
    assert error["code"] == reply.status_code or isinstance(error["code"], str)


@pytest.mark.slow
async def test_random_bodies_cause_no_server_error_and_leave_no_slot_busy(serve: Serve) -> None:
    requests: list[tuple[str, dict[str, Any]]] = []

    @settings(max_examples=500 // EXAMPLES_SHARE, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    @given(REQUEST)
    def collect(request: tuple[str, dict[str, Any]]) -> None:
        requests.append(request)

    collect()
    async with serve() as api:
        for path, body in requests:
            check(await api.client.post(path, json=body))
