"""The server on a Ray cluster: replicas with one URL (``pip install 'llamapool[ray]'``; docs/scaling.md).

::

    serve run llamapool.ray:build flags='-m model.gguf' replicas=2

Each replica is a whole server with its own pool and caches. A front (`front.Front`) receives HTTP requests and sends
each to the replica where it costs least (`placement`, `router`): the one with a cached prefix of its prompt, its model
in memory, and the lowest load. Only `placement` can be imported without Ray.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def build(arguments: dict[str, Any]) -> "Application":
    """Return the Serve application for `application.Arguments`. Raises pydantic's ValidationError."""
    from llamapool.ray.application import Arguments, application

    return application(Arguments.model_validate(arguments))
