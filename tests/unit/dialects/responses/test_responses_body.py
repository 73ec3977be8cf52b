import pytest

from server.chat.conversation import Message
from server.chat.prompt import render
from server.dialects.responses import input as responses_input
from server.dialects.responses.input import History
from server.dialects.responses.parse import parse_response
from server.errors import InvalidRequest
from tests.unit.dialects.builders import make_model


def test_what_a_template_refuses_is_the_clients_input() -> None:
    model = make_model(template="{{ raise_exception('no more') }}")
    with pytest.raises(InvalidRequest, match=r"^input: .*no more") as caught:
        render(parse_response({"input": "hi", "instructions": "be brief"}).conversation, model)
    assert caught.value.param == "input"


def test_a_reference_stands_for_the_item_of_a_stored_response() -> None:
    content = [{"type": "output_text", "text": "so", "annotations": []}]
    item = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": content}
    asked = {"input": [{"type": "item_reference", "id": "msg_1"}]}
    found = parse_response(asked, History(referenced={"msg_1": item})).conversation
    assert found.messages == (Message("assistant", "so"),)


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_input, "MAX_MESSAGES", 2)
    said = [{"role": "user", "content": "x"}]
    parse_response({"input": said}, History(said))
    with pytest.raises(InvalidRequest, match="at most 2"):
        parse_response({"input": said * 2}, History(said))
