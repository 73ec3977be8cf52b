"""Parts of replies that several APIs share: error codes, usage, timings, the text of a token."""

from dataclasses import fields, replace

import pytest

from server import errors
from server.dialects import common
from server.dialects.errors import openai_error, speaks_openai
from server.dialects.usage import Usage
from server.engine.request import Timings
from server.transport.body import BodyTimeout, BodyTooLarge
from server.transport.errors import error_body
from server.transport.limits import RateLimited


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ContextExceeded(9, 8), "context_length_exceeded"),
        (errors.InvalidRequest("tools.0.name: must be a name", "tools.0.name"), "invalid_value"),
        (errors.InvalidRequest("messages: 'messages' is required", "messages"), "missing_required_parameter"),
        (errors.InvalidRequest("the request body is not valid JSON"), "invalid_request"),
        (
            errors.InvalidRequest("Previous response with id 'x' not found.", "previous_response_id"),
            "previous_response_not_found",
        ),
        (errors.AuthenticationFailed("x"), "invalid_api_key"),
        (errors.PermissionDenied("x"), "insufficient_permissions"),
        (errors.NotFound("x"), "not_found"),
        (errors.ModelNotFound("a", ["b"]), "model_not_found"),
        (BodyTimeout("late"), "request_timeout"),
        (BodyTooLarge(1), "request_too_large"),
        (RateLimited("tokens a minute", 3, 7), "rate_limit_exceeded"),
        (errors.QueueFull("full", 2), "rate_limit_exceeded"),
        (errors.InternalError("x"), "server_error"),
        (errors.NotSupported("x"), "not_supported"),
        (errors.ModelLoading(), "service_unavailable"),
        (KeyError("x"), "server_error"),
    ],
)
def test_each_error_has_openais_code(error: Exception, code: str) -> None:
    status, body, _ = error_body(error)
    assert body["error"]["code"] == status
    found = openai_error(status, body)["error"]
    assert found == {**body["error"], "code": code, "param": body["error"].get("param")}


def test_an_import_error_names_the_package() -> None:
    broken = ImportError("/opt/venv/llguidance.so: cannot open shared object file", name="llguidance")
    status, body, _ = error_body(broken)
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert body["error"]["message"] == "the server cannot import 'llguidance'; install Llamapool's packages again"
    assert "cannot import a package;" in error_body(ImportError("numpy's long text"))[1]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "is_openai"),
    [
        ("/v1/chat/completions", True),
        ("/llm/v1/embeddings", True),
        ("/v1/models/x", True),
        ("/v1/files", True),
        ("/chat/completions", True),
        ("/responses", True),
        ("/responses/resp_1/cancel", True),
        ("/audio/transcriptions", True),
        ("/completion", False),
        ("/embeddings", False),
        ("/rerank", False),
        ("/slots", False),
        ("/models", False),
    ],
)
def test_openais_endpoints_have_openais_errors(path: str, is_openai: bool) -> None:
    assert speaks_openai(path) is is_openai


COUNTS = [field.name for field in fields(Usage)]
SAMPLE = Usage(**{name: 10**i for i, name in enumerate(reversed(COUNTS))})


@pytest.mark.parametrize("count", COUNTS)
def test_every_usage_count_is_summed_written_and_parsed(count: str) -> None:
    n = getattr(SAMPLE, count)
    assert getattr(SAMPLE + SAMPLE, count) == 2 * n
    for written in (SAMPLE.openai(), SAMPLE.responses()):
        assert getattr(Usage.read(written), count) == n
    assert replace(SAMPLE, **{count: 0}).anthropic() != SAMPLE.anthropic()


@pytest.mark.parametrize("usage", [None, [], "text", {}, {"input_tokens": None}])
def test_invalid_usage_is_parsed_as_zero(usage: object) -> None:
    assert Usage.read(usage) == Usage()


def test_timings_have_llama_servers_fields_and_count_n_minus_1_steps() -> None:
    assert common.timings(Timings(2, 1, 2.0, 3, 10.0)) == {
        "cache_n": 2,
        "prompt_n": 1,
        "prompt_ms": 2.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 3,
        "predicted_ms": 10.0,
        "predicted_per_token_ms": 5.0,
        "predicted_per_second": 200.0,
    }


@pytest.mark.parametrize(
    ("piece", "decoded"),
    [(b"abc", "abc"), ("é".encode(), "é"), ("é".encode()[:1], ""), (b"\xa9", "\ufffd"), (b"a\xf0\x9f\x98", "a")],
)
def test_an_incomplete_character_at_the_end_of_a_token_is_dropped(piece: bytes, decoded: str) -> None:
    assert common.shown_piece(piece) == decoded
