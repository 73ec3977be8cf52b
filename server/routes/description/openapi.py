"""`/openapi.json` from `document`; `/docs` with assets from a package instead of a CDN."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import Response

from server.errors import NotFound
from server.transport.errors import JSON_TYPE

router = APIRouter(include_in_schema=False)

_ASSETS = {
    "swagger-ui-bundle.js": "application/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_PACKAGE = "fastapi_swagger.resources"


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The description of every endpoint. Not on the event loop: it takes a while to make, the first time."""
    return Response(orjson.dumps(request.app.openapi()), media_type=JSON_TYPE)


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


@router.get("/docs/{name}")
def asset(name: str) -> Response:
    """A file of the page, read in a thread."""
    if name not in _ASSETS:
        raise NotFound("File Not Found")
    body = resources.files(_PACKAGE).joinpath(name).read_bytes()
    return Response(body, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})


def describe(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Make `app.openapi` return the description of `routers`."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            from server.routes.description.document import document  # few ask for it, and it knows every type

            app.openapi_schema = document(app, routers)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]
