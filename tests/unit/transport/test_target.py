"""What a request asks for is the same wherever the application is mounted, and however its path is spelt. The table of
endpoints has every route and nothing else."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match

from server.errors import NotFound, PermissionDenied
from server.routes import ROUTERS
from server.transport.endpoints import ENDPOINTS, SCOPES, UNKNOWN, Endpoint, Resolver, Target, endpoint_of
from server.transport.keys import Key, KeyStore, hash_of, plain_key
from tests.support.real_server import ROOT

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
VARIANTS: dict[str, Callable[[str], str]] = {
    "doubled": lambda path: "/" + path,
    "doubled inside": lambda path: path.replace("/", "//"),
    "trailing slash": lambda path: path + "/",
    "encoded slash": lambda path: "/" + path[1:].replace("/", "%2f"),
    "encoded twice": lambda path: "/" + path[1:].replace("/", "%252F"),
    "encoded letter": lambda path: path[:1] + f"%{ord(path[1]):x}" + path[2:] if len(path) > 1 else path,
    "dot segment": lambda path: "/." + path,
    "dot dot segment": lambda path: "/x/.." + path,
    "backslash": lambda path: "/" + path[1:].replace("/", "\\"),
    "upper case": str.upper,
    "title case": str.title,
    "line feed": lambda path: path + "\n",
    "nul": lambda path: path + "\0",
}


def scope_of(method: str, path: str, root: str = "") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "root_path": root, "query_string": b"", "headers": []}


FRAMES = {
    "plain": ("", "", ""),
    "prefix": ("/llm", "", "/llm"),
    "root path": ("", "/llm", "/llm"),  # as uvicorn has it: in front of what a proxy left of the path
    "root path left out": ("", "/llm", ""),  # as other servers have it, and httpx's transport
    "root path with a slash": ("", "/llm/", "/llm/"),
}
"""Where an application is: its prefix, the root path, and what the received path begins with."""


def target_in(frame: str, method: str, path: str) -> Target:
    prefix, root, start = FRAMES[frame]
    return Resolver(prefix).target(scope_of(method, start + path, root))


def sample(endpoint: Endpoint) -> str:
    return re.sub(r"\{\w+(:path)?\}", "x1", endpoint.path)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_spelling_gives_a_key_more(frame: str, variant: str) -> None:
    """Other spellings are unknown, and answered by nothing; what a path parameter takes needs the same key."""
    for endpoint in ENDPOINTS:
        found = target_in(frame, endpoint.method, VARIANTS[variant](sample(endpoint))).endpoint
        assert found is UNKNOWN or found.need == endpoint.need, (endpoint, found)


@given(st.sampled_from(sorted({sample(each) for each in ENDPOINTS})), st.text(max_size=5), st.integers(0, 40))
def test_what_is_not_listed_needs_every_scope(path: str, more: str, at: int) -> None:
    target = target_in("plain", "POST", path[:at] + more + path[at:])
    if target.endpoint is UNKNOWN:
        every = plain_key("k")
        access = KeyStore([every])
        access.check(every, target)
        for left in SCOPES:
            with pytest.raises((NotFound, PermissionDenied)):
                access.check(Key(name="k", hash=hash_of("k"), scopes=tuple({*SCOPES} - {left})), target)


@pytest.mark.parametrize(
    ("path", "root", "prefix", "local", "bare"),
    [
        ("/llm/health", "", "/llm", "/health", False),
        ("/llm", "", "/llm", "", True),
        ("/llm/", "", "/llm", "/", False),
        ("/llmx/health", "", "/llm", "", False),
        ("/health", "", "/llm", "", False),
        ("/r/llm/health", "/r", "/llm", "/health", False),
        ("/r/health", "/r", "/llm", "", False),
        ("/llm/health", "/ll", "", "/llm/health", False),
        ("/llm/llm/health", "/llm", "", "/llm/health", False),
        ("*", "", "", "", False),
    ],
)
def test_what_is_below_the_prefix(path: str, root: str, prefix: str, local: str, bare: bool) -> None:
    target = Resolver(prefix).target(scope_of("GET", path, root))
    assert (target.path, target.is_bare) == (local, bare)


# ---- the table of endpoints


def test_the_table_lists_every_route_and_nothing_else() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.methods or ()}
    listed = [(each.method, each.path) for each in ENDPOINTS]
    assert set(listed) == routes
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_each_path_of_the_table_is_found_and_leads_to_its_own_route(endpoint: Endpoint) -> None:
    target = target_in("plain", endpoint.method, sample(endpoint))
    assert target.endpoint == endpoint
    (route,) = [each for each in ROUTES if each.path == endpoint.path and endpoint.method in (each.methods or ())]
    assert route.matches(target.scope(scope_of(endpoint.method, target.path)))[0] is Match.FULL


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


# ---- nobody else looks

ALLOWED = ("server/transport/endpoints.py", "llamapool/client/", "server/mcp/connection.py", "server/hub/child.py")
"""The module that decides, and modules that send requests instead of serving them."""


def test_nothing_else_reads_a_requests_path() -> None:
    """Every other reader could see another path than the checks did."""
    found = {}
    for folder in ("server", "llamapool"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith(ALLOWED) and (lines := list(reads(ast.parse(file.read_text())))):
                found[name] = lines
    assert found == {}


READS = re.compile(
    r"[\w.]*scope(\[|\.get\(|\.pop\()'(path|raw_path|root_path)'.*|[\w.]*request\.(url|base_url)", re.DOTALL
)


def reads(tree: ast.AST) -> list[int]:
    """The lines that take the path or the root path of a scope, or the URL of a request."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript | ast.Attribute | ast.Call)]
    return sorted({node.lineno for node in nodes if READS.fullmatch(ast.unparse(node))})


def test_the_look_for_readers_finds_them() -> None:
    assert reads(ast.parse("scope['path']\nrequest.url.path\nscope.get('root_path', '')\nself.scope['raw_path']")) == [
        *(1, 2, 3, 4)
    ]
