from typing import Any

import pytest

from server.dialects.errors import anthropic_error
from server.dialects.messages.parse import parse_messages
from server.errors import InvalidRequest
from tests.unit.dialects.builders import FakeCompiler, FakeConstraint, make_model


def body(**more: object) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **more}


def request(model: Any = None, **more: object) -> Any:
    [found] = parse_messages(body(**more)).generation(model or make_model()).requests
    return found


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
