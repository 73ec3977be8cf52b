"""`/openapi.json`, built at its first request, and `/docs` with assets from a package instead of a CDN.

Each handler's `describe` lists its body, replies and errors. The schema of a body is that of the model that parses it.
The schema of a reply has the types of an example in ``replies.json``, because writers produce replies as bytes.

In an example ``name?`` is optional, ``"$Name"`` refers to another example, ``"a | b"`` lists values, ``*`` is any name,
null is any value, and ``#`` is the description. A test compares every example with the server's replies.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute

from server.dialects.common import Json
from server.dialects.errors import error_of_api
from server.serving.services import target_of
from server.transport.endpoints import OPEN_PATHS
from server.transport.errors import KINDS
from server.transport.sse import EVENTS_TYPE

router = APIRouter(include_in_schema=False)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
JSON, TEXT, FORM = "application/json", "text/plain", "multipart/form-data"
FINDS = (404, 503)
"""Error statuses of an endpoint that needs a model: not found, failed to load, server stopping."""
READS = (400, 408, 413, 415)
"""Error statuses of an endpoint that reads a body."""
RUNS = (*READS, *FINDS, 429, 501)
"""Error statuses of an endpoint that computes; in addition the queue is full, or the model does not support it."""
HI: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
_OPERATION = "openapi_operation"
_REF = "#/components/schemas/{model}"
_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ABOUT = (
    "The APIs of llama-server, OpenAI, Anthropic and Ollama over a pool of models. Unknown fields are ignored and "
    "listed in `X-Llamapool-Warning`; null is the same as absent. `model` is optional if only one model supports the "
    "request; a request with `?autoload=false` loads no model."
)
_AUTOLOAD: Json = {
    "name": "autoload",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean"},
    "description": "false: an error if the model is not loaded; true: load it. Absent: the server's option.",
}
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
_ERRORS = {kind.status: kind for kind in KINDS if kind.cause}  # the last one of each status
_ASSETS = {
    "swagger-ui-bundle.js": "application/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes the handler that it decorates. ``reply`` and ``stream`` are examples; a tuple lists alternatives."""

    reply: Any = None  # of a success, None for text
    body: Any = None  # the pydantic model of the body, None if the body has the schema of `example`
    example: Any = None  # of the body
    stream: Any = None  # of each event or line
    media: str = EVENTS_TYPE  # the content type of a stream or a text
    errors: tuple[int, ...] = ()
    status: int | None = 200  # of a success, None if there is none
    loads: bool = False  # whether it loads a model unless the query has ``autoload=false``
    takes: str = JSON  # the content type of the body

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_OPERATION] = self
        return endpoint


describe = Operation
computes = partial(Operation, errors=RUNS, loads=True)
"""Describe a handler that computes with a model, which it loads if necessary."""


def operation_of(endpoint: Callable[..., Any]) -> Operation:
    operation: Operation = vars(endpoint)[_OPERATION]
    return operation


def summary(docstring: str) -> str:
    """Return the first sentence or clause as Markdown, without its punctuation mark."""
    first = " ".join(docstring.split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[.;:]) ", first, maxsplit=1)[0].rstrip(".;:")


def document(app: FastAPI, routers: Sequence[APIRouter]) -> Json:
    """Return the OpenAPI 3.1 document. Its server URL is relative to its own location."""
    root = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = _Schemas()
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation_object = root["paths"][route.path_format][method.lower()]
                _fill(operation_object, route.path, operation_of(route.endpoint), schemas)
    root["components"] = {"schemas": dict(sorted(schemas.named.items())), "securitySchemes": _SECURITY}
    root["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
    root["servers"] = [{"url": "."}]  # relative to the document, below the API prefix and a proxy's
    return root


class _Schemas:
    """The schemas of pydantic models and examples. ``named``: the components that others refer to."""

    def __init__(self) -> None:
        self.named: dict[str, Json] = {}
        self._examples: Json = orjson.loads(resources.files("server.routes").joinpath("replies.json").read_bytes())

    def of_model(self, model: Any) -> Json:
        """Add the schema of a pydantic model. Return a reference to it."""
        schema = model.model_json_schema(ref_template=_REF)
        self.named |= {name: _plain(each) for name, each in schema.pop("$defs", {}).items()}
        self.named[model.__name__] = _plain(schema)
        return {"$ref": _REF.format(model=model.__name__)}

    def read(self, example: Any) -> tuple[Json, Any]:
        """Return the schema of an example, and a value that matches it, without the notation and optional members."""
        match example:
            case None:
                return {}, None
            case tuple():
                schemas, values = zip(*map(self.read, example), strict=True)
                return {"anyOf": list(schemas)}, values[0]
            case list():
                items = list(map(self.read, example))
                return {"type": "array", "items": items[0][0] if items else {}}, [value for _, value in items]
            case dict():
                return self._read_object(example)
            case str() if example.startswith("$"):
                name = example[1:]
                if name not in self.named:
                    schema, value = self.read(self._examples[name])
                    self.named[name] = schema | {"example": value}
                return {"$ref": _REF.format(model=name)}, self.named[name]["example"]
            case str() if " | " in example:
                names = example.split(" | ")
                return {"enum": [None if name == "null" else name for name in names]}, names[0]
        return {"type": _TYPES[type(example)]}, example

    def _read_object(self, example: Json) -> tuple[Json, Json]:
        members = {name: self.read(value) for name, value in example.items() if name != "#"}
        schema: Json = {"type": "object"}
        if named := {name.removesuffix("?"): each for name, (each, _) in members.items() if name != "*"}:
            schema["properties"] = named
        if "#" in example:
            schema["description"] = example["#"]
        if "*" in example:
            schema["additionalProperties"] = members["*"][0]
        instance = {name: value for name, (_, value) in members.items() if name[-1] not in "*?"}
        return schema | ({"required": list(instance)} if instance else {}), instance


def _plain(schema: Any) -> Any:
    """Simplify pydantic's schema: no titles, no null as an alternative, JSON Schema's names of limits."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        _LIMITS.get(key, key): _plain(value) for key, value in schema.items() if key not in ("title", "properties")
    }
    if plain.get("default", 0) is None:
        del plain["default"]
        plain["anyOf"] = [each for each in plain.get("anyOf", []) if each != {"type": "null"}]
        if len(plain["anyOf"]) < 2:
            plain |= plain.pop("anyOf")[0] if plain["anyOf"] else {}
        if not plain.get("anyOf", True):
            del plain["anyOf"]
    if "description" in plain:
        plain["description"] = plain["description"].replace("``", "`")
    if "properties" in schema:
        plain["properties"] = {name: _plain(each) for name, each in schema["properties"].items()}
    return plain


def _fill(description: Json, path: str, operation: Operation, schemas: _Schemas) -> None:
    """Complete FastAPI's description of a route in place."""
    text = description.pop("description", "")
    description["summary"], description["description"] = summary(text), text.replace("``", "`")
    if operation.loads:
        description["parameters"] = [*description.get("parameters", ()), _AUTOLOAD]
    if operation.example is not None:
        model = operation.body
        schema, example = schemas.read(operation.example)
        content = {"schema": schema if model is None else schemas.of_model(model), "example": example}
        description["requestBody"] = {"required": True, "content": {operation.takes: content}}
    description["responses"] = {}
    if operation.status == 204:
        description["responses"]["204"] = {"description": "Done"}
    elif operation.status is not None:
        replies = {JSON: operation.reply, operation.media: operation.stream}
        content = {media: {"schema": schemas.read(reply)[0]} for media, reply in replies.items() if reply is not None}
        text_reply = {operation.media: {"schema": {"type": "string"}}}
        description["responses"]["200"] = {"description": "OK", "content": content or text_reply}
    is_open = path in OPEN_PATHS
    for status in sorted({*operation.errors} if is_open else {*operation.errors, 401}):
        _, _, kind, cause, _ = _ERRORS[status]
        error = error_of_api(path, status, {"error": {"code": status, "message": cause, "type": kind}})
        content = {"schema": schemas.read(error)[0], "example": error}
        description["responses"][str(status)] = {"description": cause, "content": {JSON: content}}
    if is_open:
        description["security"] = []


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """Return the OpenAPI document. Runs in a thread, since building it at the first request is slow."""
    return Response(orjson.dumps(request.app.openapi()), media_type=JSON)


@router.get("/docs")
async def docs() -> Response:
    """Serve Swagger UI. Its URLs are relative, so it works under any proxy prefix."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Llamapool",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
        swagger_ui_parameters={"docExpansion": "none", "defaultModelsExpandDepth": 0, "filter": True},
    )


@router.get("/docs/swagger-ui-bundle.js")
@router.get("/docs/swagger-ui.css")
@router.get("/docs/favicon-32x32.png")
def asset(request: Request) -> Response:
    """Return a file of Swagger UI. Reads it in a thread."""
    name = target_of(request).path.rpartition("/")[2]
    body = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
    return Response(body, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})
