import pytest

from server.dialects.chat.parse import Control, read_control
from server.errors import InvalidRequest


def test_a_control_body_is_read() -> None:
    given = {"id": "chatcmpl-1", "action": "reasoning_end", "model": "demo", "more": 1}
    assert read_control(given) == Control("chatcmpl-1", "demo")
    assert read_control({"id": "chatcmpl-1", "action": "reasoning_end", "model": ""}).model is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "id", "missing completion id"),
        ({"id": ""}, "id", "missing completion id"),
        ({"id": "x"}, "action", "unknown control action"),
        ({"id": "x", "action": "stop"}, "action", "unknown control action"),
        ({"id": 1}, "id", "id"),
        ({"id": "x", "action": ["reasoning_end"]}, "action", "action"),
    ],
)
def test_a_wrong_control_body_is_refused(body: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_control(body)
    assert caught.value.param == param
