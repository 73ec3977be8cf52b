"""The table of endpoints: it has every route and nothing else, and each gets the need that it should have."""

import re

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from server.routes import ROUTERS, handlers
from server.transport.endpoints import ENDPOINTS, UNKNOWN, Endpoint, Resolver, endpoint_of

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
HANDLERS = handlers()


def test_the_table_lists_every_route_and_nothing_else() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.methods or ()}
    listed = [(each.method, each.path) for each in ENDPOINTS]
    assert set(listed) == routes
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_each_path_of_the_table_is_found_and_leads_to_its_own_route(endpoint: Endpoint) -> None:
    path = re.sub(r"\{\w+(:path)?\}", "x1", endpoint.path)
    assert endpoint_of(endpoint.method, path) == endpoint
    scope = {"type": "http", "method": endpoint.method, "path": path, "root_path": "", "query_string": b""}
    target = Resolver().target(scope)
    route = HANDLERS[target.endpoint.method, target.endpoint.path][0]
    assert (route.matches(target.scope(scope))[0], route.path) == (Match.FULL, endpoint.path)


def test_what_changes_the_server_is_known() -> None:
    changing = {(each.method, each.path) for each in ENDPOINTS if each.changes_server}
    assert changing == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")),
        *(("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("GET", "/cors-proxy"), ("POST", "/cors-proxy"), ("POST", "/tools"), ("POST", "/models/pin")),
        *(("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
        *(("POST", "/lora-adapters"), ("POST", "/props"), ("POST", "/slots/{id_slot}"), ("POST", "/cache/reset")),
        *(("POST", "/cache/pin"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")),
    }
    assert {(each.method, each.path) for each in ENDPOINTS if each.is_of_this_machine} == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
    assert endpoint_of("HEAD", "/page/bodies").is_of_this_machine
    assert UNKNOWN.changes_server
    assert UNKNOWN.is_administration


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_to_read_the_configuration_again_is_a_change_too(method: str) -> None:
    assert endpoint_of(method, "/models", b"reload=1").need == "models"
    assert endpoint_of(method, "/v1/models", b"a=b&reload=1").changes_server
    assert endpoint_of(method, "/models", b"%72eloa%64=1").changes_server
    assert endpoint_of(method, "/models").need == "any key"


def test_stopping_work_is_open_at_a_keys_limit() -> None:
    assert endpoint_of("POST", "/v1/chat/completions").is_work
    for method, path in (("POST", "/v1/chat/completions/control"), ("DELETE", "/v1/stream"), ("POST", "/models/load")):
        assert not endpoint_of(method, path).is_work
