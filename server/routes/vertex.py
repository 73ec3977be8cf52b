"""``POST /predict``: Vertex AI's prediction protocol. ``AIP_PREDICT_ROUTE`` sets another path."""

import asyncio
import contextlib
import re
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.errors import InvalidRequest, LlamapoolError, NotFound, invalid, short
from server.routes.openapi import HI, READS, describe
from server.serving.services import key_of, services
from server.transport.body import read_json
from server.transport.errors import error_body, json_reply
from server.transport.internal import post_json
from server.transport.sse import Watch

router = APIRouter(tags=["vertex"])
MAX_INSTANCES = 128
PATHS = (
    *("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/v1/completions", "/v1/embeddings"),
    *("/v1/rerank", "/v1/reranking", "/v2/rerank", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses", "/v1/responses/input_tokens"),
    *("/chat/completions", "/chat/completions/input_tokens", "/completions", "/embeddings", "/rerank", "/reranking"),
    *("/responses", "/responses/input_tokens", "/completion", "/embedding", "/infill"),
    *("/tokenize", "/detokenize", "/apply-template"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
)
"""Endpoints that an instance may call. Each needs the scope ``infer``, as the predict route."""


def alias(path: str) -> str:
    """Return llama-server's camelCase name of an endpoint: ``chatCompletions`` for ``/v1/chat/completions``."""
    words = re.split(r"[/_-]", path.removeprefix("/v1").removeprefix("/"))
    return words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])


_FORMATS = {alias(path): path for path in reversed(PATHS)} | {path: path for path in PATHS}


@router.post("/predict")
@describe(
    "$Predictions", example={"instances": [{"@requestFormat": "chatCompletions", **HI}]}, errors=(*READS, 404, 429)
)
async def predict(request: Request) -> Response:
    """Run up to 128 requests concurrently and return their replies in the same order (Vertex AI's protocol)."""
    instances = (await read_json(request)).get("instances")
    if not services(request).options.predicts:
        raise NotFound("File Not Found")
    if not isinstance(instances, list):
        raise invalid("instances", "must be an array of requests")
    if len(instances) > MAX_INSTANCES:
        raise invalid("instances", f"may contain at most {MAX_INSTANCES} requests")
    with Watch(request.receive):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_predict(request, index, each)) for index, each in enumerate(instances)]
    return json_reply({"predictions": [task.result() for task in tasks]})


async def _predict(request: Request, index: int, instance: Any) -> Any:
    """Return the reply to one instance. A failed instance becomes an object with ``error``."""
    app, key = services(request), key_of(request)
    try:
        path, body = _read(index, instance)
        encoded = orjson.dumps(body)
        # The middleware has counted the request itself, as the first instance.
        async with app.rates.counted(key) if index else contextlib.nullcontext():
            reply = await post_json(request.app, {}, app.options.api_prefix + path, encoded, key)
    except LlamapoolError as error:
        return error_body(error)[1]
    except TypeError:  # orjson parses deeper nesting than it serializes
        return error_body(invalid(f"instances.{index}", "is nested too deeply"))[1]
    return orjson.loads(reply.body)


def _read(index: int, instance: Any) -> tuple[str, dict[str, Any]]:
    """Return the path and body of an instance. Raises `InvalidRequest`."""
    at = f"instances.{index}"
    if not isinstance(instance, dict):
        raise invalid(at, "must be an object")
    name = instance.get("@requestFormat")
    path = _FORMATS.get(name) if isinstance(name, str) else None
    if path is None:
        known = ", ".join(dict.fromkeys(map(alias, PATHS)))
        problem = f" '{short(name)}' is unknown;" if isinstance(name, str) else ""
        raise InvalidRequest(f"{at}.@requestFormat:{problem} must be a path or one of {known}", f"{at}.@requestFormat")
    body = {key: value for key, value in instance.items() if key != "@requestFormat"}
    if "stream" in body or path.startswith("/api/"):  # Ollama's endpoints stream by default
        body["stream"] = False
    return path, body
