from typing import Any

import orjson
import pytest

from server.chat.conversation import Message
from server.dialects.errors import anthropic_error
from server.dialects.messages.parse import parse_messages
from server.errors import InvalidRequest
from tests.unit.dialects.builders import FakeCompiler, FakeConstraint, make_model

HI = {"role": "user", "content": "Hi"}


def test_a_schema_that_cannot_be_held_is_named_as_the_client_calls_it() -> None:
    class Strict(FakeCompiler):
        def json_schema(self, schema: Any) -> FakeConstraint:
            raise InvalidRequest("json_schema: 'if' is not supported", "json_schema")

    model = make_model()
    model.grammar = Strict()
    wanted = {"format": {"type": "json_schema", "schema": {"if": {}}}}
    with pytest.raises(InvalidRequest, match=r"^output_config.format.schema: 'if' is not supported$") as caught:
        parse_messages({"max_tokens": 5, "messages": [HI], "output_config": wanted}).generation(model)
    assert caught.value.param == "output_config.format.schema"


def test_an_unknown_model_is_told_in_the_words_that_claude_code_looks_for() -> None:
    given = {"error": {"code": 404, "message": "model 'x' not found", "type": "x", "param": "model"}}
    assert anthropic_error(404, given)["error"]["message"] == "model: model 'x' not found"


def called(arguments: str) -> Message:
    block = {"type": "tool_use", "id": "c1", "name": "look", "input": orjson.loads(arguments)}
    messages = [HI, {"role": "assistant", "content": [block]}]
    return parse_messages({"max_tokens": 5, "messages": messages}).conversation.messages[1]


@pytest.mark.parametrize("depth", [100, 400])
def test_arguments_may_be_nested_more_deeply_than_orjson_writes(depth: int) -> None:
    text = '{"a":["é",' * (depth // 2) + "null" + "]}" * (depth // 2)
    assert called(text).calls[0].arguments == text


def test_arguments_that_are_nested_too_deeply_are_refused_or_written() -> None:
    """Python 3.11 writes fewer levels than later versions."""
    text = '{"a":[' * 510 + "null" + "]}" * 510
    try:
        message = called(text)
    except InvalidRequest as error:
        if "nested too deeply" not in str(error):
            raise
    else:
        assert message.calls[0].arguments == text
