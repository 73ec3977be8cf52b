"""`/openapi.json`, built when it is first asked for, and `/docs` with assets from a package instead of a CDN.

Each handler's `describe` names its body, its replies and errors. Bodies are the models that parse them. Replies, which
writers produce as bytes, are the examples in ``replies.json``: the schema has the types of the example's values.
``name?`` is optional, ``"$Name"`` refers to another example, ``"a | b"`` lists values, ``*`` is any name, null is any
value, and ``#`` is the description. A test compares every example with the server's own replies.
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
"""Errors of an endpoint that needs a model: not found, failed to load, server stopping."""
READS = (400, 408, 413, 415)
RUNS = (*READS, *FINDS, 429, 501)
"""Errors of an endpoint that computes: besides the others, the queue is full, or the model cannot do it."""
HI: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
_OPERATION = "openapi_operation"
_REF = "#/components/schemas/{model}"
_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ABOUT = (
    "llama-server's API, OpenAI's, Anthropic's and Ollama's over a pool of models. Fields that no endpoint knows are "
    "ignored, and named in `X-Llamapool-Warning`; null is the same as absent. `model` may be left out where one model "
    "can do it; a request with `?autoload=false` loads none."
)
_AUTOLOAD: Json = {
    "name": "autoload",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean"},
    "description": "false: an error where the model is not loaded; true: load it. Absent: as the server was started.",
}
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
_ERRORS = {kind.status: kind for kind in KINDS if kind.cause}  # of several of a status the last one
_ASSETS = {
    "swagger-ui-bundle.js": "application/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """Describes the handler that it decorates. ``reply`` and ``stream`` are of examples, a tuple for alternatives."""

    reply: Any = None  # of success, None for text
    body: Any = None  # the body's model, None for a body like the example
    example: Any = None  # of the body
    stream: Any = None  # each event or line of ``media``
    media: str = EVENTS_TYPE
    errors: tuple[int, ...] = ()
    status: int | None = 200  # of success, None = never
    loads: bool = False  # it loads a model unless ``autoload`` in its query says otherwise
    takes: str = JSON  # the body's type

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        vars(endpoint)[_OPERATION] = self
        return endpoint


describe = Operation
computes = partial(Operation, errors=RUNS, loads=True)
"""Describe a handler that computes with a model, which it loads."""


def operation_of(endpoint: Callable[..., Any]) -> Operation:
    found: Operation = vars(endpoint)[_OPERATION]
    return found


def summary(docstring: str) -> str:
    """Return the first sentence, as Markdown without its full stop."""
    first = " ".join(docstring.split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[.;:]) ", first, maxsplit=1)[0].rstrip(".;:")


def document(app: FastAPI, routers: Sequence[APIRouter]) -> Json:
    """Return the OpenAPI 3.1 document; its paths are relative to its own location."""
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = _Schemas()
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                shown = found["paths"][route.path_format][method.lower()]
                _fill(shown, route.path, operation_of(route.endpoint), schemas)
    found["components"] = {"schemas": dict(sorted(schemas.named.items())), "securitySchemes": _SECURITY}
    found["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
    found["servers"] = [{"url": "."}]  # relative to the document, below the API prefix and a proxy's
    return found


class _Schemas:
    """The schemas of models and examples. ``named``: those that others refer to."""

    def __init__(self) -> None:
        self.named: dict[str, Json] = {}
        self._examples: Json = orjson.loads(resources.files("server.routes").joinpath("replies.json").read_bytes())

    def of_model(self, model: Any) -> Json:
        """Return the reference to a pydantic model's schema."""
        schema = model.model_json_schema(ref_template=_REF)
        self.named |= {name: _plain(each) for name, each in schema.pop("$defs", {}).items()}
        self.named[model.__name__] = _plain(schema)
        return {"$ref": _REF.format(model=model.__name__)}

    def read(self, example: Any) -> tuple[Json, Any]:
        """Return the schema of values like `example`, and one of them: without notation and optional members."""
        match example:
            case None:
                return {}, None
            case tuple():
                schemas, values = zip(*map(self.read, example), strict=True)
                return {"anyOf": list(schemas)}, values[0]
            case list():
                found = list(map(self.read, example))
                return {"type": "array", "items": found[0][0] if found else {}}, [value for _, value in found]
            case dict():
                return self._read_object(example)
            case str() if example.startswith("$"):
                name = example[1:]
                if name not in self.named:
                    schema, value = self.read(self._examples[name])
                    self.named[name] = schema | {"example": value}
                return {"$ref": _REF.format(model=name)}, self.named[name]["example"]
            case str() if " | " in example:
                words = example.split(" | ")
                return {"enum": [None if word == "null" else word for word in words]}, words[0]
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
    """pydantic's schema without titles, "or null" (which is the same as absent), and limits in its own words."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        _LIMITS.get(key, key): _plain(value) for key, value in schema.items() if key not in ("title", "properties")
    }
    if found.get("default", 0) is None:
        del found["default"]
        found["anyOf"] = [each for each in found.get("anyOf", []) if each != {"type": "null"}]
        if len(found["anyOf"]) < 2:
            found |= found.pop("anyOf")[0] if found["anyOf"] else {}
        if not found.get("anyOf", True):
            del found["anyOf"]
    if "description" in found:
        found["description"] = found["description"].replace("``", "`")
    if "properties" in schema:
        found["properties"] = {name: _plain(each) for name, each in schema["properties"].items()}
    return found


def _fill(shown: Json, path: str, operation: Operation, schemas: _Schemas) -> None:
    """Complete FastAPI's description of a route."""
    text = shown.pop("description", "")
    shown["summary"], shown["description"] = summary(text), text.replace("``", "`")  # a docstring's names as Markdown
    if operation.loads:
        shown["parameters"] = [*shown.get("parameters", ()), _AUTOLOAD]
    if operation.example is not None:
        model = operation.body
        schema, example = schemas.read(operation.example)
        content = {"schema": schema if model is None else schemas.of_model(model), "example": example}
        shown["requestBody"] = {"required": True, "content": {operation.takes: content}}
    shown["responses"] = {}
    if operation.status == 204:
        shown["responses"]["204"] = {"description": "Done"}
    elif operation.status is not None:
        replies = {JSON: operation.reply, operation.media: operation.stream}
        content = {media: {"schema": schemas.read(reply)[0]} for media, reply in replies.items() if reply is not None}
        text_reply = {operation.media: {"schema": {"type": "string"}}}
        shown["responses"]["200"] = {"description": "OK", "content": content or text_reply}
    is_open = path in OPEN_PATHS
    for status in sorted({*operation.errors} if is_open else {*operation.errors, 401}):
        _, _, kind, cause, _ = _ERRORS[status]
        error = error_of_api(path, status, {"error": {"code": status, "message": cause, "type": kind}})
        content = {"schema": schemas.read(error)[0], "example": error}
        shown["responses"][str(status)] = {"description": cause, "content": {JSON: content}}
    if is_open:
        shown["security"] = []


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """Return the description of every endpoint. In a thread: building it takes a while, the first time."""
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
    """Return a file of the page, read in a thread."""
    name = target_of(request).path.rpartition("/")[2]
    body = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
    return Response(body, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})
