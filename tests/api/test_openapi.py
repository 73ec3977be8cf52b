"""The description of the API against the API: every route is in it, examples work, replies have its shapes."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import jsonschema
import pytest
from fastapi.routing import APIRoute
from openapi_spec_validator import OpenAPIV31SpecValidator

from server.pool.state import Status
from server.routes import ROUTERS
from server.routes.openapi import FORM, operation_of
from tests.api.conftest import Api, Serve

pytestmark = pytest.mark.slow

MODELS = {
    "demo": {"path": "demo.gguf", "load": "startup"},
    "embedder": {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"},
    "ranker": {"path": "r.gguf", "load": "startup", "pooling": "rank"},
}
ROUTES = sorted(
    (method, route.path)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in cast(set[str], route.methods)
)
STORED = ("{response_id}", "{conversation_id}", "{file_id}", "{batch_id}")
"""Objects of which there are none."""
EXPECTED = {  # what an example can't do without a saved slot, a file, or a model that is not there
    ("POST", "/predict"): 404,
    ("POST", "/v1/batches"): 404,
    ("POST", "/v1/files"): 400,  # the example's fields are sent as files
    ("POST", "/lora-adapters"): 400,  # the model has no adapters
    ("POST", "/models/load"): 400,
    ("POST", "/v1/audio/transcriptions"): 501,  # the model hears nothing
    ("POST", "/audio/transcriptions"): 501,
    ("POST", "/v1/audio/translations"): 501,
    ("POST", "/v1/moderations"): 501,
    ("GET", "/blobs/{digest}"): 501,
    ("POST", "/models"): 501,  # tests have no network
    ("DELETE", "/models"): 400,
    ("DELETE", "/v1/stream"): 204,
    ("DELETE", "/api/delete"): 404,
}
PLACES = {
    **dict.fromkeys(("{conversation_id}", "{item_id}", "{file_id}", "{batch_id}"), "x"),
    "{response_id}": "resp_x",
    "{model_id:path}": "demo",
    "{id_slot}": "0",
    "{digest}": "sha256:0",
}
SSE = "text/event-stream"
QUERY = {
    "/v1/stream": "?conv_id=c1",
    "/slots/{id_slot}": "?action=save&model=demo",
    "/slots": "?model=demo",
    "/props": "?model=demo",
}


@pytest.fixture
async def api(serve: Serve, tmp_path: Any) -> AsyncIterator[Api]:
    options = {"metrics": True, "props": True, "slot_save_path": str(tmp_path), "lora_dir": str(tmp_path)}
    (tmp_path / "formal.gguf").touch()
    async with serve(models=MODELS, server=options) as running:
        yield running


@pytest.fixture
async def document(api: Api) -> Any:
    return (await api.expect("GET /openapi.json")).json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the method, the path and the description of each route."""
    for method, path in ROUTES:
        yield method, path, document["paths"][path.replace(":path", "")][method.lower()]


def place(path: str) -> str:
    """An address of a route."""
    url = path
    for name, value in PLACES.items():
        url = url.replace(name, value)
    return url + QUERY.get(path, "")


def expected(method: str, path: str, otherwise: int) -> int:
    """Return the status of an example."""
    return EXPECTED.get((method, path), 404 if any(each in path for each in STORED) else otherwise)


def check(instance: object, schema: dict[str, Any], document: dict[str, Any]) -> None:
    """Raise unless the instance is what the schema of the document says."""
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(instance)


def test_the_description_is_valid(document: Any) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_every_endpoint_is_described_and_nothing_else(document: Any) -> None:
    shown = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert shown == {(method, path.replace(":path", "")) for method, path in ROUTES}


def test_every_operation_says_what_it_takes_what_it_gives_and_how_it_fails(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for status, response in operation["responses"].items():
                assert response["description"], (method, path)
                for content in response.get("content", {}).values():
                    assert content["schema"], (method, path, status)
                    if "example" in content:
                        check(content["example"], content["schema"], document)
                if status not in ("200", "204"):
                    assert response["content"]["application/json"]["example"]
            keyed = operation.get("security") != []
            assert ("401" in operation["responses"]) == keyed
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                check(content["example"], content["schema"], document)
                assert {"400", "413"} <= set(operation["responses"])


def test_every_field_of_every_body_has_a_schema(document: Any) -> None:
    bodies = {name: schema for name, schema in document["components"]["schemas"].items() if name.endswith("Body")}
    assert len(bodies) > 10
    nameless = [(name, field) for name, each in bodies.items() for field, its in each["properties"].items() if not its]
    assert nameless == [], "a field that is read by hand has its schema in its type (server.dialects.fields)"


def example(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation's own, as httpx takes it."""
    ((kind, content),) = operation.get("requestBody", {}).get("content", {"": {}}).items()
    return {"files": content["example"]} if kind == FORM else {"json": content.get("example")}


async def test_examples_work_and_their_replies_have_the_shapes(api: Api, document: Any) -> None:
    for method, path, operation in operations(document):
        if SSE in operation["responses"].get("200", {}).get("content", {}) and method == "GET":
            continue  # endless
        reply = await api.client.request(method, place(path), **example(operation))
        wanted = expected(method, path, 200 if "200" in operation["responses"] else 501)
        assert reply.status_code == wanted, (method, path, reply.text)
        if reply.status_code == 204:
            continue
        content = operation["responses"][str(reply.status_code)]["content"]
        kind = reply.headers["content-type"].split(";")[0]
        if not kind.startswith("text/"):
            check(reply.json(), content["application/json"]["schema"], document)
        else:
            assert kind in content


async def test_what_loads_a_model_says_so_and_reads_autoload(serve: Serve, document: Any) -> None:
    options = {"slot_save_path": ".", "lora_dir": ".", "props": True}
    async with serve(models={"demo": {"path": "d.gguf"}}, server=options) as api:
        for method, path, operation in operations(document):
            if not any(each["name"] == "autoload" for each in operation.get("parameters", ())):
                continue
            url = place(path)
            reply = await api.client.request(
                method, f"{url}{'&' if '?' in url else '?'}autoload=false", **example(operation)
            )
            assert (reply.status_code, "not loaded" in reply.text) == (400, True), (method, path, reply.text)
        assert api.pool.state("demo").status is Status.UNLOADED
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    said = [operation_of(route.endpoint) for route in routes if route.include_in_schema]
    assert all(503 in operation.errors for operation in said if operation.loads)


async def test_a_broken_body_fails_in_the_shape_that_is_described(api: Api, document: Any) -> None:
    for method, path, operation in operations(document):
        if method == "POST":
            reply = await api.client.post(place(path), content=b"{", headers={"Content-Type": "application/json"})
            wanted = 400 if "requestBody" in operation else expected(method, path, 501)
            assert reply.status_code == wanted, path
            responses = operation["responses"]
            check(reply.json(), responses[str(reply.status_code)]["content"]["application/json"]["schema"], document)


async def test_streams_have_the_events_that_are_described(api: Api, document: Any) -> None:
    found = set()
    for path, methods in document["paths"].items():
        operation = methods.get("post", {})
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        media = next((kind for kind in ("text/event-stream", "application/x-ndjson") if kind in content), None)
        if media is None:
            continue
        found.add(path)
        body = operation["requestBody"]["content"].get("application/json", {}).get("example")
        if body is None:  # a form
            continue
        reply = await api.client.post(path, json={**body, "stream": True})
        assert reply.headers["content-type"].split(";")[0] == media
        lines = [
            line.removeprefix("data: ") for line in reply.text.split("\n") if line[:1] == "{" or line[:6] == "data: "
        ]
        schema, whole = (content[kind]["schema"] for kind in (media, "application/json"))
        for line in lines:
            if line != "[DONE]":
                last = path in ("/completion", "/completions", "/infill") and line == lines[-1]
                check(json.loads(line), whole if last else schema, document)
        assert len(lines) > (0 if path == "/api/pull" else 2)  # of a model that is there
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/completion"} <= found


async def test_the_page_needs_nothing_from_elsewhere(serve: Serve) -> None:
    async with serve(server={"api_prefix": "/llm", "api_keys": ["secret"]}) as api:
        page = await api.client.get("/llm/docs")
        assert page.status_code == 200
        assert "http" not in page.text.replace("http-equiv", "")
        for name, kind in (
            ("swagger-ui-bundle.js", "javascript"),
            ("swagger-ui.css", "css"),
            ("favicon-32x32.png", "png"),
        ):
            assert f'"docs/{name}"' in page.text
            file = await api.client.get(f"/llm/docs/{name}")
            assert (file.status_code, kind in file.headers["content-type"]) == (200, True)
            assert len(file.content) > 100
        assert "'openapi.json'" in page.text
        document = (await api.client.get("/llm/openapi.json")).json()
        assert "/v1/chat/completions" in document["paths"]
        assert document["servers"] == [{"url": "."}]  # which is /llm, where the document is
        assert (await api.client.get("/llm/docs/other.js")).status_code in (401, 404)
