"""The server as an ASGI application: ``uvicorn llamapool.app:app``, or in your program.

::

    from llamapool.app import create_app, load_settings

    app = create_app(load_settings(["-m", "model.gguf", "-c", "8192"]))

It loads no model before its lifespan starts. An invalid setting raises a `ConfigError` with a message of one line.
"""

from typing import TYPE_CHECKING

from server import app as _server
from server.app import create_app
from server.errors import ConfigError, LlamapoolError
from server.settings import Settings, load_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ConfigError", "LlamapoolError", "Settings", "create_app", "load_settings"]


def __getattr__(name: str) -> "FastAPI":
    """Create ``app`` from flags and environment on first access."""
    if name != "app":
        raise AttributeError(f"module 'llamapool.app' has no attribute {name!r}")
    app: FastAPI = _server.app
    return app
