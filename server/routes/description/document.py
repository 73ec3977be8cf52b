"""The description of every endpoint, made of the routes and `operations`."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from server.dialects.common import openai_error, speaks_openai
from server.dialects.messages.errors import anthropic_error, speaks_anthropic
from server.dialects.ollama.errors import ollama_error, speaks_ollama
from server.dialects.vectors.rerank import cohere_error, speaks_cohere
from server.routes.description import replies
from server.routes.description.operations import FIELDS, OPERATIONS, Json, Operation
from server.transport.endpoints import OPEN_PATHS

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_LIMITS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
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
_WHEN = {
    400: "The request is invalid; the message names the field.",
    401: "The API key is missing or invalid.",
    404: "No such model or object.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "The queue is full; `Retry-After` says when to retry.",
    501: "The server or the model was started without this feature.",
    503: "The model cannot be loaded, or the server is stopping.",
}
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def document(app: FastAPI, routers: Sequence[APIRouter]) -> Json:
    """Return the OpenAPI 3.1 document; its paths are relative to its own location."""
    made = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = _Schemas()
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods or ():
                    shown = made["paths"][route.path_format][method.lower()]
                    _fill(shown, route, OPERATIONS[route.endpoint], schemas)
    made["components"] = {"schemas": schemas.definitions(), "securitySchemes": _SECURITY}
    made["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
    made["servers"] = [{"url": "."}]  # relative to the document, below the API prefix and a proxy's
    return made


_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


class _Schemas:
    """The named schemas of all types used."""

    def __init__(self) -> None:
        self._named: dict[str, Json] = {}

    def of(self, kind: Any) -> Json:
        """Return the schema of a type; referenced types are added to the definitions."""
        schema = TypeAdapter(kind).json_schema(ref_template=_REF)
        for name, each in schema.pop("$defs", {}).items():
            self._keep(name, each)
        if "properties" in schema:
            name = schema["title"]
            self._keep(name, schema)
            return {"$ref": _REF.format(model=name)}
        plain: Json = _plain(schema)
        return plain

    def _keep(self, name: str, schema: Json) -> None:
        plain = _plain(schema)
        assert self._named.setdefault(name, plain) == plain, f"two types are called {name}"

    def definitions(self) -> Json:
        """By name, in order."""
        return dict(sorted(self._named.items()))


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
        found["description"] = _markdown(found["description"])
    if "properties" in schema:
        found["properties"] = {name: _property(name, each) for name, each in schema["properties"].items()}
    return found


def _property(name: str, schema: Json) -> Json:
    plain: Json = _plain(schema)
    return dict(FIELDS.get(name, {})) if not plain or set(plain) == {"default"} else plain


def _fill(shown: Json, route: APIRoute, operation: Operation, schemas: _Schemas) -> None:
    """Complete FastAPI's description of a route."""
    text = _markdown(shown.pop("description", ""))
    shown["summary"] = re.split(r"(?<=[.;:]) ", text.split("\n\n")[0], maxsplit=1)[0].rstrip(".;:")
    shown["description"] = text
    if operation.loads:
        shown["parameters"] = [*shown.get("parameters", ()), _AUTOLOAD]
    if operation.body is not None:
        content = {"schema": schemas.of(operation.body), "example": operation.example}
        shown["requestBody"] = {"required": True, "content": {operation.takes: content}}
    shown["responses"] = dict(_responses(route.path, operation, schemas))
    if route.path in OPEN_PATHS:
        shown["security"] = []


def _responses(path: str, operation: Operation, schemas: _Schemas) -> Iterator[tuple[str, Json]]:
    if operation.status == 204:
        yield "204", {"description": "Done"}
    elif operation.status is not None:
        yield str(operation.status), {"description": "OK", "content": _content(operation, schemas)}
    errors = set(operation.errors) if path in OPEN_PATHS else {*operation.errors, 401}
    for status in sorted(errors):
        shape, example = _error(path, status)
        content = {"schema": schemas.of(shape), "example": example}
        yield str(status), {"description": _WHEN[status], "content": {_JSON: content}}


def _error(path: str, status: int) -> tuple[type, Json]:
    """The shape of an error of the endpoint at `path`, and one."""
    type_ = _TYPES.get(status, "invalid_request_error")
    said: Json = {"error": {"code": status, "message": _WHEN[status], "type": type_}}
    if speaks_anthropic(path):
        return replies.AnthropicError, anthropic_error(status, said)
    if speaks_ollama(path):
        return replies.OllamaError, ollama_error(status, said)
    if speaks_cohere(path):
        return replies.CohereError, cohere_error(status, said)
    if speaks_openai(path):
        return replies.OpenAIError, openai_error(status, said)
    return replies.Error, said


def _content(operation: Operation, schemas: _Schemas) -> Json:
    found: Json = {}
    if operation.reply is not None:
        found[_JSON] = {"schema": schemas.of(operation.reply)}
    if operation.stream is not None:
        found[operation.media] = {"schema": schemas.of(operation.stream)}
    return found or {operation.media: {"schema": {"type": "string"}}}


def _markdown(text: str) -> str:
    """A docstring's ``names`` as Markdown's."""
    return text.replace("``", "`")
