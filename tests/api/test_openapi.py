"""/openapi.json describes every route; its examples work, and real replies match its schemas."""

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
"""Path parameters of stored objects, of which there are none: their examples are a 404."""
EXPECTED = {  # the status of examples that need a file, an audio model or the network
    ("POST", "/predict"): 404,
    ("POST", "/v1/batches"): 404,
    ("POST", "/v1/files"): 400,  # the example's fields are sent as files
    ("POST", "/lora-adapters"): 400,  # the model has no adapters
    ("POST", "/models/load"): 400,
    ("POST", "/v1/audio/transcriptions"): 501,  # the model has no audio support
    ("POST", "/audio/transcriptions"): 501,
    ("POST", "/v1/audio/translations"): 501,
    ("POST", "/v1/moderations"): 501,
    ("GET", "/blobs/{digest}"): 501,
    ("POST", "/models"): 501,  # tests have no network
    ("DELETE", "/models"): 400,
    ("DELETE", "/v1/stream"): 204,
    ("DELETE", "/api/delete"): 404,
}
PATH_VALUES = {
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


def url_of(path: str) -> str:
    """Return a URL of the route `path`."""
    url = path
    for name, value in PATH_VALUES.items():
        url = url.replace(name, value)
    return url + QUERY.get(path, "")


def expected_status(method: str, path: str, default: int) -> int:
    """Return the status of an operation's example."""
    return EXPECTED.get((method, path), 404 if any(each in path for each in STORED) else default)


def check(instance: object, schema: dict[str, Any], document: dict[str, Any]) -> None:
    """Raise unless `instance` matches `schema`, which may refer to the document's components."""
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(instance)


def test_document_is_valid_openapi_3_1(document: Any) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_document_describes_exactly_the_routes(document: Any) -> None:
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(method, path.replace(":path", "")) for method, path in ROUTES}


def test_every_operation_has_summary_schemas_examples_and_errors(document: Any) -> None:
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
            needs_key = operation.get("security") != []
            assert ("401" in operation["responses"]) == needs_key
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                check(content["example"], content["schema"], document)
                assert {"400", "413"} <= set(operation["responses"])


def test_every_field_of_every_body_has_a_schema(document: Any) -> None:
    bodies = {name: schema for name, schema in document["components"]["schemas"].items() if name.endswith("Body")}
    assert len(bodies) > 10
    missing = [
        (name, field) for name, body in bodies.items() for field, schema in body["properties"].items() if not schema
    ]
    assert missing == [], "give a field with its own parser a schema in its type (server.dialects.fields)"


def example(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the operation's example as arguments of httpx."""
    ((kind, content),) = operation.get("requestBody", {}).get("content", {"": {}}).items()
    return {"files": content["example"]} if kind == FORM else {"json": content.get("example")}


async def test_examples_work_and_replies_match_their_schemas(api: Api, document: Any) -> None:
    for method, path, operation in operations(document):
        if SSE in operation["responses"].get("200", {}).get("content", {}) and method == "GET":
            continue  # an endless stream
        reply = await api.client.request(method, url_of(path), **example(operation))
        status = expected_status(method, path, 200 if "200" in operation["responses"] else 501)
        assert reply.status_code == status, (method, path, reply.text)
        if reply.status_code == 204:
            continue
        content = operation["responses"][str(reply.status_code)]["content"]
        kind = reply.headers["content-type"].split(";")[0]
        if not kind.startswith("text/"):
            check(reply.json(), content["application/json"]["schema"], document)
        else:
            assert kind in content


async def test_operations_that_load_a_model_document_and_obey_autoload(serve: Serve, document: Any) -> None:
    options = {"slot_save_path": ".", "lora_dir": ".", "props": True}
    async with serve(models={"demo": {"path": "d.gguf"}}, server=options) as api:
        for method, path, operation in operations(document):
            if not any(each["name"] == "autoload" for each in operation.get("parameters", ())):
                continue
            url = url_of(path) + ("&" if "?" in url_of(path) else "?") + "autoload=false"
            reply = await api.client.request(method, url, **example(operation))
            assert (reply.status_code, "not loaded" in reply.text) == (400, True), (method, path, reply.text)
        assert api.pool.state("demo").status is Status.UNLOADED
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    described = [operation_of(route.endpoint) for route in routes if route.include_in_schema]
    assert all(503 in operation.errors for operation in described if operation.loads)


async def test_error_of_an_invalid_body_matches_its_schema(api: Api, document: Any) -> None:
    for method, path, operation in operations(document):
        if method == "POST":
            reply = await api.client.post(url_of(path), content=b"{", headers={"Content-Type": "application/json"})
            status = 400 if "requestBody" in operation else expected_status(method, path, 501)
            assert reply.status_code == status, path
            responses = operation["responses"]
            check(reply.json(), responses[str(reply.status_code)]["content"]["application/json"]["schema"], document)


async def test_stream_events_match_their_schemas(api: Api, document: Any) -> None:
    tested = set()
    for path, methods in document["paths"].items():
        operation = methods.get("post", {})
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        media = next((kind for kind in ("text/event-stream", "application/x-ndjson") if kind in content), None)
        if media is None:
            continue
        tested.add(path)
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
        assert len(lines) > (0 if path == "/api/pull" else 2)  # pulling a model that exists is one line
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/completion"} <= tested


async def test_docs_page_loads_only_its_own_files(serve: Serve) -> None:
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
        assert document["servers"] == [{"url": "."}]  # relative to the document, so /llm
        assert (await api.client.get("/llm/docs/other.js")).status_code in (401, 404)
