"""The client's answers: errors, health, interfaces and replies."""

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


class Clock:
    """Time that passes in `sleep` only."""

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
    found = Clock()
    monkeypatch.setattr(server_state, "time", found)
    return found


LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


def loading() -> httpx.Response:
    return httpx.Response(503, json=LOADING)


def ready() -> httpx.Response:
    return httpx.Response(200, json={"status": "ok"})


def refused() -> httpx.Response:
    raise httpx.ConnectError("refused")


def in_turn(*answers: Callable[[], httpx.Response]) -> Callable[[httpx.Request], httpx.Response]:
    """A server that gives these answers, the last one for ever."""
    left = list(answers)
    return lambda _: (left.pop(0) if len(left) > 1 else left[0])()


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
def test_health_of_a_server_that_answers(status: int, body: object, expected: HealthStatus) -> None:
    health = answering(body, status).client.health()
    assert (health, health.raw) == (expected, body)
    assert answering(body, status).client.is_ready() == (status == 200)


def test_no_server_is_not_ready_and_has_no_health() -> None:
    asked = served_by(in_turn(refused))
    assert not asked.client.is_ready()
    with pytest.raises(ServerUnreachable):
        asked.client.health()


@pytest.mark.parametrize(
    ("answers", "timeout", "is_ready", "slept"),
    [
        ((refused, loading, ready), 10.0, True, [0.5, 0.5]),
        ((loading,), 1.2, False, [0.5, 0.5, 0.2]),
        ((ready,), 0.0, True, []),
        ((loading,), 0.0, False, []),
    ],
)
def test_waiting_ends_when_the_server_is_ready_or_with_its_time(
    clock: Clock, answers: tuple[Callable[[], httpx.Response], ...], timeout: float, is_ready: bool, slept: list[float]
) -> None:
    asked = served_by(in_turn(*answers))
    assert asked.client.wait_until_ready(timeout=timeout, poll_interval=0.5) == is_ready
    assert clock.slept == pytest.approx(slept)
    assert len(asked.requests) == len(slept) + 1


def test_a_server_that_hangs_does_not_outlast_the_wait(clock: Clock) -> None:
    asked = served_by(in_turn(ready))
    asked.client.wait_until_ready(timeout=7.0, poll_interval=0.5)
    assert set(asked.last.extensions["timeout"].values()) == {7.0}


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
    """Yield each public method with its parameters and defaults, and each type of a reply with its fields."""
    for api in APIS:
        for name, method in inspect.getmembers(api, inspect.isfunction):
            if not name.startswith("_") or method is LlamaCppClient.__init__:
                given = inspect.signature(method).parameters.values()
                bare = [p.replace(annotation=inspect.Parameter.empty) for p in given if p.name != "self"]
                yield f"{api.__name__}.{name}{inspect.Signature(bare)}"
    for name, kind in sorted(vars(package).items()):
        if dataclasses.is_dataclass(kind):
            yield f"{name}: {' '.join(field.name for field in dataclasses.fields(kind))}"
    yield f"StopType: {' '.join(kind.name for kind in StopType)}"


def test_methods_and_replies_are_as_written() -> None:
    """``python -m tests.unit.client.test_client`` writes the file again."""
    assert list(interface()) == INTERFACE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("method", "typed", "known"), BODIES, ids=lambda given: getattr(given, "__qualname__", ""))
def test_each_field_that_the_server_reads_is_typed(
    method: Callable[..., object], typed: type, known: Collection[str]
) -> None:
    shown = next(overload for overload in get_overloads(method))
    named = {name for name in inspect.signature(shown).parameters if name not in ("self", "kwargs")}
    assert not named & typed.__annotations__.keys()
    assert named | typed.__annotations__.keys() == {name for name in known if "." not in name}


@pytest.mark.parametrize("method", [method for method, *_ in BODIES], ids=lambda method: method.__qualname__)
def test_a_parameter_with_a_default_has_the_type_of_its_field(method: Callable[..., object]) -> None:
    typed = next(fields for found, fields, _ in BODIES if found is method).__annotations__
    given = inspect.signature(method).parameters
    assert {name: given[name].annotation for name in given.keys() & typed} == {
        name: typed[name] for name in given.keys() & typed
    }


def test_importing_the_client_imports_nothing_of_the_server() -> None:
    program = (
        "import sys, llamapool.client\n"
        "print(*sorted({n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)))\n"
        'print(*sorted(n for n in sys.modules if n.partition(".")[0] == "server" or n == "llamapool.app"))\n'
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    libraries, of_the_server = done.stdout.splitlines()
    assert of_the_server == ""
    assert "httpx" in libraries.split()
    for name in ("fastapi", "starlette", "pydantic", "llama_cpp", "numpy", "orjson", "jinja2", "prometheus_client"):
        assert name not in libraries.split()


HELLO = [{"role": "user", "content": "Hello"}]


def test_a_chat_reply_of_another_server_may_lack_almost_everything() -> None:
    response = answering({"choices": [{}]}).client.chat_completion(HELLO)
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
def test_a_native_reply_ends_for_a_reason(stop_type: str | None, kind: StopType | None, finish_reason: str) -> None:
    choice = answering({"content": "a b", "stop_type": stop_type}).client.complete("x").choices[0]
    assert (choice.stop_type, choice.finish_reason) == (kind, finish_reason)


def test_a_reply_cut_down_by_response_fields_has_what_is_left() -> None:
    response = answering({"n_predict": 5, "content": "a"}).client.complete("x", response_fields=["content"])
    assert (response.choices[0].text, response.usage, response.timings, response.model) == ("a", None, None, "")
    assert response.raw["n_predict"] == 5


def test_timings_of_older_servers_lack_some_or_have_null() -> None:
    response = answering({"timings": {"prompt_n": 3, "prompt_per_second": None}}).client.complete("x")
    assert response.timings == Timings(prompt_n=3)


EMBEDDINGS = {"object": "list", "model": "bert", "usage": {"prompt_tokens": 6, "total_tokens": 6}}


def test_base64_embeddings_are_decoded() -> None:
    encoded = base64.b64encode(struct.pack("<2f", 0.5, -1.0)).decode()
    reply = EMBEDDINGS | {"data": [{"embedding": encoded, "index": 0, "encoding_format": "base64"}]}
    response = answering(reply).client.embeddings.create("a", encoding_format="base64")
    assert response.data[0].embedding == [0.5, -1.0]
    assert response.raw["data"][0]["embedding"] == encoded


@pytest.mark.parametrize("embedding", [None, 1.0, "%%%", base64.b64encode(b"12345").decode()])
def test_an_embedding_that_is_none_is_unexpected(embedding: object) -> None:
    with pytest.raises(UnexpectedReply):
        answering({"data": [{"embedding": embedding}]}).client.embeddings.create("a")


@pytest.mark.parametrize(
    ("reply", "vectors"),
    [
        ([{"index": 0, "embedding": [[1.0, 2.0]]}], [[1.0, 2.0]]),
        ([{"index": 1, "embedding": [[2.0]]}, {"index": 0, "embedding": [[1.0]]}], [[1.0], [2.0]]),
        ([{"index": 0, "embedding": [[1.0], [2.0], [3.0]]}], [[1.0], [2.0], [3.0]]),
        ({"embedding": [1.0, 2.0]}, [[1.0, 2.0]]),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}], [[1.0], [2.0]]),
    ],
    ids=["pooled", "out of order", "a vector for each token", "before 2025", "before 2025, several"],
)
def test_native_embeddings_of_every_shape_are_vectors(reply: object, vectors: list[list[float]]) -> None:
    assert answering(reply).client.embed("a") == vectors


@pytest.mark.parametrize("reply", [[{"index": 0}], [{"index": 0, "embedding": []}], [1.0], "x"])
def test_native_embeddings_of_no_shape_are_unexpected(reply: object) -> None:
    with pytest.raises(UnexpectedReply):
        answering(reply).client.embed("a")


def test_tokens_come_as_ids_or_with_pieces() -> None:
    plain = answering({"tokens": [261, 232]}).client.tokenize("x")
    assert (plain.tokens, plain.ids, plain.pieces) == ([261, 232], [261, 232], [])
    sent = [{"id": 261, "piece": " ä"}, {"id": 232, "piece": [229]}]
    pieces = answering({"tokens": sent}).client.tokenize("x", with_pieces=True)
    assert (pieces.tokens, pieces.ids, pieces.pieces) == (sent, [261, 232], [" ä".encode(), b"\xe5"])


def test_slots_may_lack_fields_or_have_more() -> None:
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
