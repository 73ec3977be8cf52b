"""The Python client: errors, health, its public interface, and parsed replies."""

import base64
import dataclasses
import inspect
import struct
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import get_overloads

import httpx
import pytest

from llamapool import client as package
from llamapool.client import (
    Choice,
    CompletionResponse,
    HealthStatus,
    LlamaCppClient,
    ServerUnreachable,
    SlotInfo,
    StopType,
    Timings,
    UnexpectedReply,
    errors,
    fields,
    server_state,
)
from llamapool.client.chat import ChatCompletionsAPI
from llamapool.client.embeddings import EmbeddingsClientAPI
from llamapool.client.lora import LoraClientAPI
from llamapool.client.messages import MessagesClientAPI
from llamapool.client.models import ModelsClientAPI
from llamapool.client.openai_completions import CompletionsClientAPI
from llamapool.client.responses import ResponsesClientAPI
from llamapool.client.slots import SlotsClientAPI
from server.dialects.chat.parse import ChatBody
from server.dialects.completions.parse import CompletionBody
from server.dialects.messages.parse import MessagesBody
from server.dialects.native.parse import InfillBody, NativeBody
from server.dialects.responses.parse import ResponsesBody
from server.dialects.warnings import known_fields
from tests.support.real_server import ROOT
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
def test_each_http_status_raises_its_error_class(status: int, kind: type[errors.ApiError]) -> None:
    body = {"error": {"code": 999, "message": "bad field", "type": "some_error"}}
    with pytest.raises(errors.ApiError) as raised:
        answering(body, status).client.props()
    error = raised.value
    assert type(error) is kind
    assert (error.status, error.message, error.type, error.body) == (status, "bad field", "some_error", body)
    assert str(error) == f"{status} some_error: bad field"


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
def test_error_messages_are_found_in_other_error_formats(body: object, message: str) -> None:
    with pytest.raises(errors.ApiError) as raised:
        answering(body, 502).client.models.list()
    assert raised.value.message == message
    assert raised.value.type == ""
    assert raised.value.body == body
    assert str(raised.value) == f"502: {message}"


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Fri, 31 Dec 1999 23:59:59 GMT", None), (None, None)])
def test_retry_after_header_sets_retry_after_s(header: str | None, seconds: float | None) -> None:
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
def test_connection_errors_name_the_url(cause: httpx.RequestError, kind: type[errors.LlamaCppError]) -> None:
    def break_off(_: httpx.Request) -> httpx.Response:
        raise cause

    with pytest.raises(errors.LlamaCppError) as raised:
        served_by(break_off).client.props()
    assert type(raised.value) is kind
    assert raised.value.message == f"GET http://server.test/props: {cause}"


@pytest.mark.parametrize(
    ("call", "reply", "message"),
    [
        (lambda client: client.props(), "<html>It works!</html>", "not JSON"),
        (lambda client: client.props(), [], "not a JSON object"),
        (lambda client: client.slots.list(), {}, "not a JSON array of objects"),
        (lambda client: client.tokenize("x"), {}, "'tokens'"),
        (lambda client: client.chat_completion([]), {"choices": None}, None),
        *(
            (lambda client: client.embeddings.create("a"), {"data": [{"embedding": embedding}]}, None)
            for embedding in (None, 1.0, "%%%", base64.b64encode(b"12345").decode())
        ),
        *(
            (lambda client: client.embed("a"), reply, None)
            for reply in ([{"index": 0}], [{"index": 0, "embedding": []}], [1.0], "x")
        ),
    ],
)
def test_malformed_replies_raise_unexpected_reply(
    call: Callable[[LlamaCppClient], object], reply: object, message: str | None
) -> None:
    with pytest.raises(UnexpectedReply, match=message) as raised:
        call(answering(reply).client)
    assert not message or raised.value.body == reply


class Clock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server_state, "time", clock)
    return clock


LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


def loading() -> httpx.Response:
    return httpx.Response(503, json=LOADING)


def ready() -> httpx.Response:
    return httpx.Response(200, json={"status": "ok"})


def refused() -> httpx.Response:
    raise httpx.ConnectError("refused")


def in_turn(*replies: Callable[[], httpx.Response]) -> Callable[[httpx.Request], httpx.Response]:
    """Return a handler that returns `replies` one after the other and repeats the last."""
    remaining = list(replies)
    return lambda _: (remaining.pop(0) if len(remaining) > 1 else remaining[0])()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, {"status": "ok"}, HealthStatus("ok")),
        (200, {"status": "ok", "slots_idle": 3, "slots_processing": 1}, HealthStatus("ok", 3, 1)),
        (503, LOADING, HealthStatus("loading")),
        (503, {"status": "loading model"}, HealthStatus("loading")),
        (503, {"error": {"code": 503, "message": "model 'a' failed to load: no memory"}}, HealthStatus("error")),
        (503, {"status": "no slot available", "slots_idle": 0, "slots_processing": 2}, HealthStatus("error", 0, 2)),
        (500, {"error": {"message": "Loading model"}}, HealthStatus("error")),
        (502, "<html>Bad Gateway</html>", HealthStatus("error")),
        (401, {"error": {"code": 401, "message": "Invalid API Key"}}, HealthStatus("error")),
    ],
)
def test_health_replies_are_parsed(status: int, body: object, expected: HealthStatus) -> None:
    health = answering(body, status).client.health()
    assert (health, health.raw) == (expected, body)
    assert answering(body, status).client.is_ready() == (status == 200)


def test_unreachable_server_is_not_ready_and_health_raises() -> None:
    client = served_by(in_turn(refused)).client
    assert not client.is_ready()
    with pytest.raises(ServerUnreachable):
        client.health()


@pytest.mark.parametrize(
    ("replies", "timeout", "is_ready", "slept"),
    [
        ((refused, loading, ready), 10.0, True, [0.5, 0.5]),
        ((loading,), 1.2, False, [0.5, 0.5, 0.2]),
        ((ready,), 0.0, True, []),
        ((loading,), 0.0, False, []),
    ],
)
def test_wait_until_ready_polls_until_the_server_is_ready_or_the_timeout(
    clock: Clock, replies: tuple[Callable[[], httpx.Response], ...], timeout: float, is_ready: bool, slept: list[float]
) -> None:
    server = served_by(in_turn(*replies))
    assert server.client.wait_until_ready(timeout=timeout, poll_interval=0.5) == is_ready
    assert clock.slept == pytest.approx(slept)
    assert len(server.requests) == len(slept) + 1


def test_wait_until_ready_limits_each_request_to_the_remaining_time(clock: Clock) -> None:
    server = served_by(in_turn(ready))
    server.client.wait_until_ready(timeout=7.0, poll_interval=0.5)
    assert set(server.last.extensions["timeout"].values()) == {7.0}


INTERFACE = Path(__file__).with_name("interface.txt")
BODIES = [
    (ChatCompletionsAPI.create, fields.ChatFields, known_fields(ChatBody).names),
    (CompletionsClientAPI.create, fields.TextFields, known_fields(CompletionBody).names),
    (LlamaCppClient.complete, fields.CompletionFields, known_fields(NativeBody).names),
    (LlamaCppClient.infill, fields.InfillFields, known_fields(InfillBody).names),
    (
        MessagesClientAPI.create,
        fields.MessageFields,
        MessagesBody.model_fields.keys() - {"context_management", "mcp_servers"},
    ),
    (ResponsesClientAPI.create, fields.ResponseFields, known_fields(ResponsesBody).names),
]


APIS = (
    *(LlamaCppClient, ChatCompletionsAPI, CompletionsClientAPI, EmbeddingsClientAPI, LoraClientAPI, MessagesClientAPI),
    *(ModelsClientAPI, ResponsesClientAPI, SlotsClientAPI),
)


def interface() -> Iterator[str]:
    """Yield each public method with its parameters and defaults, and each reply class with its fields."""
    for api in APIS:
        for name, method in inspect.getmembers(api, inspect.isfunction):
            if not name.startswith("_") or method is LlamaCppClient.__init__:
                parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
                bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
                yield f"{api.__name__}.{name}{inspect.Signature(bare)}"
    for name, kind in sorted(vars(package).items()):
        if dataclasses.is_dataclass(kind):
            yield f"{name}: {' '.join(field.name for field in dataclasses.fields(kind))}"
    yield f"StopType: {' '.join(kind.name for kind in StopType)}"


def test_public_interface_equals_the_recorded_one() -> None:
    """After an intended change, ``python -m tests.unit.client.test_client`` writes the file again."""
    assert list(interface()) == INTERFACE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("method", "typed", "known"), BODIES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_each_field_of_the_servers_bodies_is_typed(
    method: Callable[..., object], typed: type, known: Collection[str]
) -> None:
    overload = next(iter(get_overloads(method)))
    named = {name for name in inspect.signature(overload).parameters if name not in ("self", "kwargs")}
    assert not named & typed.__annotations__.keys()
    assert named | typed.__annotations__.keys() == {name for name in known if "." not in name}


@pytest.mark.parametrize("method", [method for method, *_ in BODIES], ids=lambda method: method.__qualname__)
def test_parameters_have_the_types_of_their_body_fields(method: Callable[..., object]) -> None:
    typed = next(fields for found, fields, _ in BODIES if found is method).__annotations__
    parameters = inspect.signature(method).parameters
    shared = parameters.keys() & typed
    assert {name: parameters[name].annotation for name in shared} == {name: typed[name] for name in shared}


def test_importing_the_client_does_not_import_the_server() -> None:
    program = (
        "import sys, llamapool.client\n"
        "print(*sorted({n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)))\n"
        'print(*sorted(n for n in sys.modules if n.partition(".")[0] == "server" or n == "llamapool.app"))\n'
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    libraries, server_modules = done.stdout.splitlines()
    assert server_modules == ""
    assert "httpx" in libraries.split()
    for name in ("fastapi", "starlette", "pydantic", "llama_cpp", "numpy", "orjson", "jinja2", "prometheus_client"):
        assert name not in libraries.split()


def test_chat_replies_may_lack_optional_fields() -> None:
    response = answering({"choices": [{}]}).client.chat_completion([])
    assert response == CompletionResponse("", "chat.completion", 0, "", [Choice(0)])


@pytest.mark.parametrize(
    ("stop_type", "kind", "finish_reason"),
    [
        ("eos", StopType.EOS, "stop"),
        ("word", StopType.WORD, "stop"),
        ("limit", StopType.LIMIT, "length"),
        ("none", StopType.NONE, None),
        ("new", None, None),
        (None, None, None),
    ],
)
def test_native_stop_types_become_finish_reasons(
    stop_type: str | None, kind: StopType | None, finish_reason: str
) -> None:
    choice = answering({"content": "a b", "stop_type": stop_type}).client.complete("x").choices[0]
    assert (choice.stop_type, choice.finish_reason) == (kind, finish_reason)


def test_reply_reduced_by_response_fields_has_the_other_fields_empty() -> None:
    response = answering({"n_predict": 5, "content": "a"}).client.complete("x", response_fields=["content"])
    assert (response.choices[0].text, response.usage, response.timings, response.model) == ("a", None, None, "")
    assert response.raw["n_predict"] == 5


def test_timings_may_lack_fields_or_contain_null() -> None:
    response = answering({"timings": {"prompt_n": 3, "prompt_per_second": None}}).client.complete("x")
    assert response.timings == Timings(prompt_n=3)


def test_base64_embeddings_are_decoded() -> None:
    encoded = base64.b64encode(struct.pack("<2f", 0.5, -1.0)).decode()
    reply = {"data": [{"embedding": encoded, "index": 0, "encoding_format": "base64"}]}
    response = answering(reply).client.embeddings.create("a", encoding_format="base64")
    assert response.data[0].embedding == [0.5, -1.0]
    assert response.raw["data"][0]["embedding"] == encoded


@pytest.mark.parametrize(
    ("reply", "vectors"),
    [
        ([{"index": 0, "embedding": [[1.0, 2.0]]}], [[1.0, 2.0]]),
        ([{"index": 1, "embedding": [[2.0]]}, {"index": 0, "embedding": [[1.0]]}], [[1.0], [2.0]]),
        ([{"index": 0, "embedding": [[1.0], [2.0], [3.0]]}], [[1.0], [2.0], [3.0]]),
        ({"embedding": [1.0, 2.0]}, [[1.0, 2.0]]),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}], [[1.0], [2.0]]),
    ],
    ids=["pooled", "out of order", "one vector per token", "before 2025", "before 2025, several"],
)
def test_native_embeddings_of_all_formats_are_parsed(reply: object, vectors: list[list[float]]) -> None:
    assert answering(reply).client.embed("a") == vectors


def test_tokenize_parses_ids_with_and_without_pieces() -> None:
    plain = answering({"tokens": [261, 232]}).client.tokenize("x")
    assert (plain.tokens, plain.ids, plain.pieces) == ([261, 232], [261, 232], [])
    tokens = [{"id": 261, "piece": " ä"}, {"id": 232, "piece": [229]}]
    pieces = answering({"tokens": tokens}).client.tokenize("x", with_pieces=True)
    assert (pieces.tokens, pieces.ids, pieces.pieces) == (tokens, [261, 232], [" ä".encode(), b"\xe5"])


def test_slots_may_lack_fields_or_have_unknown_ones() -> None:
    slots = [
        {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False},
        {"id": 1, "n_ctx": 256, "is_processing": True, "params": {"n_predict": 9}, "prompt": "a", "later": 1},
        {"id": 2, "state": 1, "n_predict": 5, "n_ctx": 256, "params": None},
    ]
    found = answering(slots).client.slots.list()
    assert found == [
        SlotInfo(0, False, 256),
        SlotInfo(1, True, 256, 9, {"n_predict": 9}, "a"),
        SlotInfo(2, True, 256, 5),
    ]
    assert found[1].raw["later"] == 1


if __name__ == "__main__":
    INTERFACE.write_text("".join(f"{line}\n" for line in interface()), encoding="utf-8")
