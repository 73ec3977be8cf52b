"""What a refused request raises."""

import httpx
import pytest

from llamapool.client import errors
from tests.unit.client.answers import answering, served_by


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.AuthenticationFailed),
        (403, errors.AuthenticationFailed),
        (404, errors.NotFound),
        (413, errors.BadRequest),
        (429, errors.Unavailable),
        (500, errors.ApiError),
        (501, errors.NotSupported),
        (503, errors.Unavailable),
        (307, errors.ApiError),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[errors.ApiError]) -> None:
    body = {"error": {"code": 999, "message": "what is wrong", "type": "some_error"}}
    with pytest.raises(errors.ApiError) as raised:
        answering(body, status).client.props()
    error = raised.value
    assert type(error) is kind
    assert (error.status, error.message, error.type, error.body) == (status, "what is wrong", "some_error", body)
    assert str(error) == f"{status} some_error: what is wrong"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "only text"}, "only text"),
        ({"message": "at the top"}, "at the top"),
        ({"error": {}}, "no message"),
        ("<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        ("", "no message"),
        ("x" * 1000, "x" * 300 + "…"),
    ],
)
def test_other_shapes_of_an_error_are_read(body: object, message: str) -> None:
    with pytest.raises(errors.ApiError) as raised:
        answering(body, 502).client.models.list()
    assert raised.value.message == message
    assert raised.value.type == ""
    assert raised.value.body == body
    assert str(raised.value) == f"502: {message}"


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Fri, 31 Dec 1999 23:59:59 GMT", None), (None, None)])
def test_a_full_queue_says_when_to_come_back(header: str | None, seconds: float | None) -> None:
    headers = {"retry-after": header} if header else None
    with pytest.raises(errors.Unavailable) as raised:
        answering({"error": {"message": "full"}}, 429, headers).client.tokenize("x")
    assert raised.value.retry_after_s == seconds


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (httpx.ConnectError("refused"), errors.ServerUnreachable),
        (httpx.ReadTimeout("slow"), errors.RequestTimedOut),
        (httpx.RemoteProtocolError("cut"), errors.ServerUnreachable),
    ],
)
def test_no_answer_is_an_error_that_names_the_address(
    cause: httpx.RequestError, kind: type[errors.LlamaCppError]
) -> None:
    def break_off(_: httpx.Request) -> httpx.Response:
        raise cause

    with pytest.raises(errors.LlamaCppError) as raised:
        served_by(break_off).client.props()
    assert type(raised.value) is kind
    assert raised.value.message == f"GET http://server.test/props: {cause}"


def test_a_reply_of_another_program_is_unexpected() -> None:
    with pytest.raises(errors.UnexpectedReply, match="not JSON") as raised:
        answering("<html>It works!</html>").client.props()
    assert raised.value.body == "<html>It works!</html>"
    with pytest.raises(errors.UnexpectedReply, match="not a JSON object"):
        answering([]).client.props()
    with pytest.raises(errors.UnexpectedReply, match="not a JSON array of objects"):
        answering({}).client.slots.list()
    with pytest.raises(errors.UnexpectedReply, match="'tokens'"):
        answering({}).client.tokenize("x")
    with pytest.raises(errors.UnexpectedReply):
        answering({"choices": None}).client.chat_completion([])
