"""The table of endpoints: it has every route and nothing else, and each gets the need that it should have."""

import re

import pytest
from fastapi.routing import APIRoute
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.routing import Match

from server.routes import ROUTERS
from server.transport.endpoints import ENDPOINTS, UNKNOWN, Endpoint, endpoint_of

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
ASSETS = "/docs/{name}"
"""Listed file by file in the table: any other name is nobody's."""


def sample(path: str) -> str:
    """A path that a route with parameters serves."""
    return re.sub(r"\{\w+(:path)?\}", "x1", path)


def test_the_table_lists_every_route_and_nothing_else() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.methods or () if route.path != ASSETS}
    listed = [(each.method, each.path) for each in ENDPOINTS if not each.path.startswith("/docs/")]
    assert set(listed) == routes
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_each_path_of_the_table_is_found_and_leads_to_its_own_route(endpoint: Endpoint) -> None:
    path = sample(endpoint.path)
    assert endpoint_of(endpoint.method, path) == endpoint
    served = ASSETS if endpoint.path.startswith("/docs/") else endpoint.path
    assert first_route(endpoint.method, path) == served


def first_route(method: str, path: str) -> str | None:
    """The route that the router would call."""
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    return next((route.path for route in ROUTES if route.matches(scope)[0] is Match.FULL), None)


SPOILED = st.sampled_from(["/", "//", "\n", "\r", " ", ".", "..", "/..", "%2f", "%2e", "\\", ";", "\0", "x", "ſ", ""])


@given(
    st.sampled_from([(each.method, sample(each.path)) for each in ENDPOINTS]),
    st.lists(st.tuples(st.integers(0, 60), SPOILED), max_size=3),
    st.booleans(),
)
@example(("POST", "/models/unload"), [(60, "\n")], False)
def test_the_router_serves_nothing_under_another_name(
    at: tuple[str, str], spoiled: list[tuple[int, str]], upper: bool
) -> None:
    """Whatever a path looks like: an endpoint that is found is the router's, or needs a key with every scope."""
    method, path = at[0], at[1].upper() if upper else at[1]
    for where, what in spoiled:
        path = path[:where] + what + path[where:]
    found, served = endpoint_of(method, path), first_route(method, path)
    if found is not UNKNOWN:
        assert served == (ASSETS if found.path.startswith("/docs/") else found.path)


def test_what_changes_the_server_is_known() -> None:
    changing = {(each.method, each.path) for each in ENDPOINTS if each.changes_server}
    assert changing == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")),
        *(("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("GET", "/cors-proxy"), ("POST", "/cors-proxy"), ("POST", "/tools"), ("POST", "/models/pin")),
        *(("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
        *(("POST", "/lora-adapters"), ("POST", "/props"), ("POST", "/slots/{id_slot}"), ("POST", "/cache/reset")),
        ("POST", "/cache/pin"),
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
