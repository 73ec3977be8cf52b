"""Which endpoints are found without FastAPI's routing, and that they answer as through it."""

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from server.errors import InvalidRequest
from server.transport.direct import DirectRoutes
from server.transport.endpoints import Resolver

router = APIRouter()


@router.post("/plain")
async def plain(request: Request) -> Response:
    return Response(f"{request.scope['route'].path} {len(await request.body())}")


@router.post("/refused")
async def refused(_: Request) -> Response:
    raise InvalidRequest("no")


@router.get("/broken")
async def broken(_: Request) -> Response:
    raise KeyError("secret")


@router.get("/items/{name}")
async def item(request: Request, name: str) -> Response:
    return Response(name)


@router.get("/asked")
async def asked(request: Request, what: str = "") -> Response:
    return Response(what)


@router.get("/threaded")
def threaded(request: Request) -> Response:
    return Response("from a thread")


@pytest.fixture
def passed_on() -> list[str]:
    return []


@pytest.fixture
def client(passed_on: list[str]) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(router)
    inner = app.build_middleware_stack()

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        passed_on.append(scope["path"])
        scope["app"] = app
        await inner(scope, receive, send)

    direct, resolver = DirectRoutes(app, behind, [router]), Resolver()

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await direct(resolver.target(scope).scope(scope), receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://test")


async def test_a_fixed_path_needs_no_application(client: httpx.AsyncClient, passed_on: list[str]) -> None:
    assert (await client.post("/plain", content=b"12345")).text == "/plain 5"
    assert passed_on == []


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/items/one", 200, "one"),
        ("/asked?what=this", 200, "this"),
        ("/threaded", 200, "from a thread"),
        ("/plain", 405, '{"detail":"Method Not Allowed"}'),
        ("/nothing", 404, '{"detail":"Not Found"}'),
    ],
)
async def test_everything_else_is_the_application_s(
    client: httpx.AsyncClient, passed_on: list[str], path: str, status: int, text: str
) -> None:
    reply = await client.get(path)
    assert (reply.status_code, reply.text) == (status, text)
    assert passed_on == [path.partition("?")[0]]


async def test_an_error_is_a_reply(client: httpx.AsyncClient) -> None:
    reply = await client.post("/refused")
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "no")


async def test_a_fault_is_answered_and_goes_on_to_who_logs_it(client: httpx.AsyncClient) -> None:
    with pytest.raises(KeyError):
        await client.get("/broken")
