"""OpenAI's error codes, for each error that a reply may be."""

import pytest

from server import errors
from server.dialects.errors import openai_error, speaks_openai
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
        (BodyTimeout(1.0), "request_timeout"),
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


@pytest.mark.parametrize(
    ("path", "speaks"),
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
def test_openais_endpoints_and_llama_servers_own(path: str, speaks: bool) -> None:
    assert speaks_openai(path) is speaks
