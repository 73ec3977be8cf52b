import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from server import errors
from server.transport.body import BodyTimeout, BodyTooLarge, UnsupportedEncoding
from server.transport.errors import error_body


@pytest.mark.parametrize(
    ("error", "status", "type_"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (errors.ContextExceeded(9, 8), 400, "exceed_context_size_error"),
        (errors.AuthenticationFailed("x"), 401, "authentication_error"),
        (errors.NotFound("x"), 404, "not_found_error"),
        (errors.ModelNotFound("a", ["b"]), 404, "not_found_error"),
        (BodyTimeout(1.0), 408, "invalid_request_error"),
        (BodyTooLarge(1), 413, "invalid_request_error"),
        (UnsupportedEncoding("gzip"), 415, "invalid_request_error"),
        (errors.QueueFull(3, 2), 429, "unavailable_error"),
        (errors.InternalError("x"), 500, "server_error"),
        (errors.LlamapoolError("x"), 500, "server_error"),
        (errors.NotSupported("x"), 501, "not_supported_error"),
        (errors.Unavailable("x"), 503, "unavailable_error"),
        (errors.ModelLoading(), 503, "unavailable_error"),
        (errors.ModelFailed("a", "b"), 503, "unavailable_error"),
        (errors.ShuttingDown(), 503, "unavailable_error"),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "invalid_request_error"),
        (HTTPException(404), 404, "not_found_error"),
    ],
)
def test_every_error_has_its_status_and_type(error: Exception, status: int, type_: str) -> None:
    code, body, _ = error_body(error)
    assert code == status
    assert body["error"]["code"] == status
    assert body["error"]["type"] == type_
    assert body["error"]["message"]


def test_a_prompt_too_long_carries_both_counts() -> None:
    _, body, _ = error_body(errors.ContextExceeded(1040, 256))
    assert body == {
        "error": {
            "code": 400,
            "message": "request (1040 tokens) exceeds the available context size (256 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 1040,
            "n_ctx": 256,
        }
    }


def test_a_full_queue_says_when_to_come_back() -> None:
    assert error_body(errors.QueueFull(3, 7))[2] == {"Retry-After": "7"}
    assert error_body(errors.NoRoom("demo", 60.0, 10))[2] == {"Retry-After": "10"}


def test_a_wrong_field_is_named() -> None:
    _, body, _ = error_body(errors.InvalidRequest("messages.0.role: no such role", "messages.0.role"))
    assert body["error"]["param"] == "messages.0.role"


def test_pydantic_findings_become_one_message_with_the_field() -> None:
    class Message(BaseModel):
        role: str

    class Chat(BaseModel):
        messages: list[Message]

    with pytest.raises(ValidationError) as caught:
        Chat.model_validate({"messages": [{}]})
    code, body, _ = error_body(caught.value)
    assert code == 400
    assert body["error"]["message"] == "messages.0.role: Field required"


def test_a_wrong_query_parameter_is_named() -> None:
    error = RequestValidationError([{"loc": ("query", "n"), "msg": "Input should be a number", "type": "int"}])
    assert error_body(error)[1]["error"]["message"] == "n: Input should be a number"


def test_a_body_that_nests_too_deeply_for_python_is_the_clients_fault() -> None:
    assert error_body(RecursionError())[0] == 400
