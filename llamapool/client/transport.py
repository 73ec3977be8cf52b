"""HTTP: bodies from arguments, requests, and replies as JSON or events. Errors are raised.

Only this file and `stream` handle httpx replies.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from llamapool.client.errors import UnexpectedReply, api_error
from llamapool.client.stream import EventStream, connection_errors

STREAM_HEADERS = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",  # compression would hold events back
    "Connection": "close",  # llama-server silently closes it after a stream, so the next request would fail
}
PLACEHOLDER_MODELS = ("gpt-codex-5.3", "text-embedding-ada-002")  # defaults of `model` that do not select a model

_IDLE_S = 3.0  # llama-server closes idle connections after 5 s; httpx's default of 5 s would reuse a closing one

Body = dict[str, Any] | list[Any]


def new_http_client(base_url: str, api_key: str | None, timeout_s: float, verify_ssl: bool) -> httpx.Client:
    """Return the connection pool for one server; `base_url` may have a path (llama-server's ``--api-prefix``)."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=_IDLE_S)
    return httpx.Client(base_url=base_url, headers=headers, timeout=timeout_s, verify=verify_ssl, limits=limits)


class Transport:
    """Requests to a server over a connection pool. Thread-safe."""

    def __init__(self, http: httpx.Client, model: str | None = None) -> None:
        """Create a transport. `model` is sent with requests that name none."""
        self.http = http
        self.model = model

    def get(self, path: str, params: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Any:
        """Return the JSON of a GET. Raises `LlamaCppError`, like the other methods."""
        return _json(self._get(path, params, timeout_s))

    def get_text(self, path: str) -> str:
        return self._get(path, None, None).text

    def delete(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return _json(self._send(self.http.build_request("DELETE", path, params=params)))

    def post(self, path: str, body: Body, params: Mapping[str, str] | None = None) -> Any:
        return _json(self._send(self._post_request(path, body, params)))

    def post_object(self, path: str, body: Body, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return as_object(self.post(path, body, params))

    def stream(self, path: str, body: Body) -> EventStream:
        """Send a streamed POST. Returns its events once its head has arrived."""
        return self._stream(self._post_request(path, body, None))

    def stream_get(self, path: str) -> EventStream:
        return self._stream(self.http.build_request("GET", path))

    def _stream(self, request: httpx.Request) -> EventStream:
        request.headers.update(STREAM_HEADERS)
        with connection_errors():
            response = self.http.send(request, stream=True)
            try:
                if not response.is_success:
                    response.read()
                _successful(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise UnexpectedReply("the server did not stream", response.read().decode("utf-8", "replace"))
            except BaseException:
                response.close()
                raise
        return EventStream(response)

    def _get(self, path: str, params: Mapping[str, str] | None, timeout_s: float | None) -> httpx.Response:
        query = {**({"model": self.model} if self.model else {}), **(params or {})}
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        return self._send(self.http.build_request("GET", path, params=query, timeout=timeout))

    def _send(self, request: httpx.Request) -> httpx.Response:
        with connection_errors():
            return _successful(self.http.send(request))

    def _post_request(self, path: str, body: Body, params: Mapping[str, str] | None) -> httpx.Request:
        """Encode `body` as JSON. The model goes into an object, or into the query next to an array."""
        query = dict(params or {})
        if self.model and isinstance(body, dict):
            model = body.get("model")
            body = {**body, "model": self.model if model in (None, *PLACEHOLDER_MODELS) else model}
        elif self.model:
            query["model"] = self.model
        return self.http.build_request("POST", path, json=body, params=query)


class EndpointFamily:
    """A group of a server's endpoints: an attribute or a base class of the client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


def _successful(response: httpx.Response) -> httpx.Response:
    """Return `response` if its status is 2xx. Raises `ApiError`."""
    if response.is_success:
        return response
    try:
        body = response.json()
    except ValueError:
        body = response.text
    raise api_error(response.status_code, body, response.headers.get("retry-after"))


def _json(response: httpx.Response) -> Any:
    """Return the body as JSON. Raises `UnexpectedReply`."""
    try:
        return json.loads(response.content)
    except ValueError:
        raise UnexpectedReply("the reply is not JSON", response.text) from None


def body_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a method whose parameters are its fields, from its ``locals()``.

    Omits ``self`` and None values, so that the server's defaults apply. ``kwargs`` are further fields.
    """
    fields = {name: value for name, value in arguments.items() if name not in ("self", "kwargs")}
    return {name: value for name, value in (fields | arguments.get("kwargs", {})).items() if value is not None}


def as_object(reply: Any) -> dict[str, Any]:
    """Return `reply`, which must be a JSON object. Raises `UnexpectedReply`."""
    if not isinstance(reply, dict):
        raise UnexpectedReply("the reply is not a JSON object", reply)
    return reply


def as_objects(reply: Any) -> list[dict[str, Any]]:
    """Return `reply`, which must be an array of objects. Raises `UnexpectedReply`."""
    if not isinstance(reply, list) or not all(isinstance(entry, dict) for entry in reply):
        raise UnexpectedReply("the reply is not a JSON array of objects", reply)
    return reply


def required(reply: dict[str, Any], name: str) -> Any:
    """Return a required field of a reply. Raises `UnexpectedReply`."""
    if reply.get(name) is None:
        raise UnexpectedReply(f"the reply has no {name!r}", reply)
    return reply[name]
