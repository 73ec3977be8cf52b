"""The endpoint of a request does not depend on the mount or the spelling of its path; the table lists every route."""

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


MOUNTS = {
    "plain": ("", "", ""),
    "prefix": ("/llm", "", "/llm"),
    "root path": ("", "/llm", "/llm"),  # uvicorn adds the root path to the path that the proxy sends
    "root path left out": ("", "/llm", ""),  # other servers, and httpx's transport, do not add it
    "root path with a slash": ("", "/llm/", "/llm/"),
}
"""The API prefix of each mount, its root path, and the start of the received path."""


def resolve(mount: str, method: str, path: str) -> Target:
    prefix, root, start = MOUNTS[mount]
    return Resolver(prefix).target(scope_of(method, start + path, root))


def sample(endpoint: Endpoint) -> str:
    return re.sub(r"\{\w+(:path)?\}", "x1", endpoint.path)


@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_path_variants_never_need_fewer_scopes(mount: str, variant: str) -> None:
    """A variant is an unknown path, or it matches a path parameter and needs the same scope."""
    for endpoint in ENDPOINTS:
        found = resolve(mount, endpoint.method, VARIANTS[variant](sample(endpoint))).endpoint
        assert found is UNKNOWN or found.need == endpoint.need, (endpoint, found)


@given(st.sampled_from(sorted({sample(each) for each in ENDPOINTS})), st.text(max_size=5), st.integers(0, 40))
def test_unlisted_path_needs_every_scope(path: str, more: str, at: int) -> None:
    target = resolve("plain", "POST", path[:at] + more + path[at:])
    if target.endpoint is UNKNOWN:
        all_scopes = plain_key("k")
        store = KeyStore([all_scopes])
        store.check(all_scopes, target)
        for missing in SCOPES:
            with pytest.raises((NotFound, PermissionDenied)):
                store.check(Key(name="k", hash=hash_of("k"), scopes=tuple({*SCOPES} - {missing})), target)


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
def test_local_path_under_prefix_and_root_path(path: str, root: str, prefix: str, local: str, bare: bool) -> None:
    target = Resolver(prefix).target(scope_of("GET", path, root))
    assert (target.path, target.is_bare) == (local, bare)


# ---- the table of endpoints


def test_table_lists_exactly_the_routes() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.methods or ()}
    listed = [(each.method, each.path) for each in ENDPOINTS]
    assert set(listed) == routes
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_each_endpoint_resolves_to_its_own_route(endpoint: Endpoint) -> None:
    target = resolve("plain", endpoint.method, sample(endpoint))
    assert target.endpoint == endpoint
    (route,) = [each for each in ROUTES if each.path == endpoint.path and endpoint.method in (each.methods or ())]
    assert route.matches(target.scope(scope_of(endpoint.method, target.path)))[0] is Match.FULL


def test_endpoints_that_change_the_server_and_local_ones() -> None:
    changing = {(each.method, each.path) for each in ENDPOINTS if each.changes_server}
    assert changing == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/models/load"), ("POST", "/models/unload")),
        *(("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("GET", "/cors-proxy"), ("POST", "/cors-proxy"), ("POST", "/tools"), ("POST", "/models/pin")),
        *(("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
        *(("POST", "/lora-adapters"), ("POST", "/props"), ("POST", "/slots/{id_slot}"), ("POST", "/cache/reset")),
        *(("POST", "/cache/pin"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")),
    }
    assert {(each.method, each.path) for each in ENDPOINTS if each.is_local_only} == {
        *(("POST", "/models"), ("DELETE", "/models"), ("POST", "/api/pull"), ("DELETE", "/api/delete")),
        *(("POST", "/tools"), ("POST", "/page/bench"), ("GET", "/page/log"), ("GET", "/page/bodies")),
    }
    assert endpoint_of("HEAD", "/page/bodies").is_local_only
    assert UNKNOWN.changes_server
    assert UNKNOWN.is_administration


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reload_of_the_model_list_changes_the_server(method: str) -> None:
    assert endpoint_of(method, "/models", b"reload=1").need == "models"
    assert endpoint_of(method, "/v1/models", b"a=b&reload=1").changes_server
    assert endpoint_of(method, "/models", b"%72eloa%64=1").changes_server
    assert endpoint_of(method, "/models").need == "any key"


def test_control_endpoints_do_not_count_as_work() -> None:
    assert endpoint_of("POST", "/v1/chat/completions").is_work
    for method, path in (("POST", "/v1/chat/completions/control"), ("DELETE", "/v1/stream"), ("POST", "/models/load")):
        assert not endpoint_of(method, path).is_work


# ---- no other reader of paths

ALLOWED = ("server/transport/endpoints.py", "llamapool/client/", "server/mcp/connection.py", "server/hub/child.py")
"""The module that decides, and modules that send requests instead of serving them."""


def test_no_other_module_reads_the_path_of_a_request() -> None:
    """It could read another path than the one that was checked."""
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
    """Return the lines that read the path or the root path of a scope, or the URL of a request."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript | ast.Attribute | ast.Call)]
    return sorted({node.lineno for node in nodes if READS.fullmatch(ast.unparse(node))})


def test_search_finds_readers_of_paths() -> None:
    assert reads(ast.parse("scope['path']\nrequest.url.path\nscope.get('root_path', '')\nself.scope['raw_path']")) == [
        *(1, 2, 3, 4)
    ]
