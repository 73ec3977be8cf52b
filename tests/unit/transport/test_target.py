"""What a request asks for is the same wherever the application is mounted, and however its path is spelt."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import NotFound, PermissionDenied
from server.transport.endpoints import ENDPOINTS, SCOPES, UNKNOWN, Endpoint, Resolver, Target
from server.transport.keys import Key, KeyStore, hash_of, plain_key
from tests.support.real_server import ROOT

Frame = Callable[[str, str], Target]
"""Somewhere an application is: the target of a method and a path there."""
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


def plain(method: str, path: str) -> Target:
    return Resolver().target(scope_of(method, path))


def behind_a_prefix(method: str, path: str) -> Target:
    return Resolver("/llm").target(scope_of(method, "/llm" + path))


def under_a_root_path(method: str, path: str) -> Target:
    """As uvicorn has it: the root path is in front of what a proxy left of the path."""
    return Resolver().target(scope_of(method, "/llm" + path, "/llm"))


def under_a_root_path_that_is_left_out(method: str, path: str) -> Target:
    """As other servers have it, and httpx's transport."""
    return Resolver().target(scope_of(method, path, "/llm"))


def under_a_root_path_with_a_slash(method: str, path: str) -> Target:
    return Resolver().target(scope_of(method, "/llm/" + path, "/llm/"))


FRAMES: dict[str, Frame] = {
    "prefix": behind_a_prefix,
    "root path": under_a_root_path,
    "root path left out": under_a_root_path_that_is_left_out,
    "root path with a slash": under_a_root_path_with_a_slash,
}


def sample(endpoint: Endpoint) -> str:
    return re.sub(r"\{\w+(:path)?\}", "x1", endpoint.path)


@pytest.mark.parametrize("frame", ["plain", *FRAMES])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_spelling_gives_a_key_more(frame: str, variant: str) -> None:
    """Other spellings are unknown, and answered by nothing; what a path parameter takes needs the same key."""
    made = {"plain": plain, **FRAMES}[frame]
    for endpoint in ENDPOINTS:
        found = made(endpoint.method, VARIANTS[variant](sample(endpoint))).endpoint
        assert found is UNKNOWN or found.need == endpoint.need, (endpoint, found)


@given(st.sampled_from(sorted({sample(each) for each in ENDPOINTS})), st.text(max_size=5), st.integers(0, 40))
def test_what_is_not_listed_needs_every_scope(path: str, more: str, at: int) -> None:
    target = plain("POST", path[:at] + more + path[at:])
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
