import pytest

from server.routes import ROUTERS
from server.transport.access.endpoints import changes_the_server, is_of_this_machine, scope_of

ANY_KEY = {
    *("/", "/health", "/v1/health", "/livez", "/readyz", "/docs", "/openapi.json", "/models", "/v1/models"),
    *("/models/sse", "/v1/models/{model_id:path}", "/props", "/lora-adapters", "/tokenizer_info", "/api/tags"),
    *(
        "/api/ps",
        "/api/version",
        "/api/blobs/{digest}",
        "/v1/responses/{response_id}",
        "/responses/{response_id}",
        "/v1/stream",
        "/tools",
        "/page/config",
    ),
}
"""Reads that any key may do."""


def every_endpoint() -> set[tuple[str, str]]:
    return {
        (method, route.path)  # type: ignore[attr-defined]
        for router in ROUTERS
        for route in router.routes
        for method in route.methods or ()  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize(("method", "path"), sorted(every_endpoint()))
def test_each_endpoint_but_known_reads_needs_a_scope(method: str, path: str) -> None:
    static = path.startswith("/docs/")
    assert (scope_of(method, path) is None) == (method == "GET" and (path in ANY_KEY or static))


def test_what_changes_the_server_is_known() -> None:
    changing = {(method, path) for method, path in every_endpoint() if changes_the_server(method, path)}
    assert changing == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")),
        *(("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("GET", "/cors-proxy"), ("POST", "/cors-proxy"), ("POST", "/tools"), ("POST", "/models/pin")),
        *(("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
        *(("POST", "/lora-adapters"), ("POST", "/props"), ("POST", "/slots/{id_slot}")),
    }
    assert {each for each in changing if is_of_this_machine(*each)} == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
    assert is_of_this_machine("HEAD", "/page/bodies")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_to_read_the_configuration_again_is_a_change_too(method: str) -> None:
    assert changes_the_server(method, "/models", b"reload=1")
    assert changes_the_server(method, "/v1/models", b"a=b&reload=1")
    assert changes_the_server(method, "/models", b"%72eloa%64=1")
    assert not changes_the_server(method, "/models", b"")
