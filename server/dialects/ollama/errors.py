"""Errors in the format of Ollama's API: ``{"error": "message"}``, in a stream as its last line."""

import orjson

from server.dialects.common import Json

_PATH = "/api/"


def speaks_ollama(path: str) -> bool:
    """Whether the endpoint at `path` (without the server's prefix) is one of Ollama's API."""
    return path.startswith(_PATH)


def ollama_error(_: int, error: Json) -> Json:
    """The body, out of llama-server's ``{"error": {"message", ...}}``."""
    return {"error": error["error"]["message"]}


def error_line(status: int, error: Json) -> bytes:
    """The last line of a stream that fails."""
    return orjson.dumps(ollama_error(status, error)) + b"\n"
