from typing import Any

import pytest

from server.chat.prepare import prompt_of
from server.dialects.errors import anthropic_error
from server.dialects.messages.parse import DEFAULT_MAX_TOKENS, parse_messages
from server.engine.request import SamplingParams
from server.errors import InvalidRequest
from tests.unit.dialects.builders import FakeCompiler, FakeConstraint, make_model

EFFORT = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}"


def body(**more: object) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **more}


def request(model: Any = None, **more: object) -> Any:
    [found] = parse_messages(body(**more)).generation(model or make_model()).requests
    return found


def test_a_body_becomes_a_request() -> None:
    found = request(
        system="Be brief.",
        stop_sequences=["END", ""],
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        metadata={"user_id": "me"},
        service_tier="auto",
    )
    assert found.id.startswith("msg_")
    assert (found.max_tokens, found.stop, found.n) == (5, ("END",), 1)
    assert found.sampling == SamplingParams(temperature=0.5, top_p=0.25, top_k=7)


def test_effort_is_the_templates_reasoning_effort() -> None:
    wanted = parse_messages(body(output_config={"effort": "low"}))
    assert prompt_of(wanted.conversation, make_model(template=EFFORT)).rendered.text == "Hilow"


def test_without_a_limit_llama_servers_holds() -> None:
    assert request(max_tokens=None).max_tokens == DEFAULT_MAX_TOKENS == 4096


def test_a_schema_that_cannot_be_held_is_named_as_the_client_calls_it() -> None:
    class Strict(FakeCompiler):
        def json_schema(self, schema: Any) -> FakeConstraint:
            raise InvalidRequest("json_schema: 'if' is not supported", "json_schema")

    model = make_model()
    model.grammar = Strict()
    with pytest.raises(InvalidRequest) as caught:
        request(model, output_config={"format": {"type": "json_schema", "schema": {"if": {}}}})
    assert caught.value.param == "output_config.format.schema"
    assert caught.value.message == "output_config.format.schema: 'if' is not supported"


def test_an_unknown_model_is_told_in_the_words_that_claude_code_looks_for() -> None:
    given = {"error": {"code": 404, "message": "model 'x' not found", "type": "x", "param": "model"}}
    assert anthropic_error(404, given)["error"]["message"] == "model: model 'x' not found"
