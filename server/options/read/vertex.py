"""Reads the variables that Vertex AI sets in a container: ``AIP_MODE`` and ``AIP_*``."""

from collections.abc import Mapping

from server.options.read.layers import SourcedValue

_DEFAULTS = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HTTP_PORT": "8080"}
_FIELDS = {"AIP_PREDICT_ROUTE": "predict_route", "AIP_HEALTH_ROUTE": "health_route", "AIP_HTTP_PORT": "port"}


def read_vertex(env: Mapping[str, str]) -> dict[str, SourcedValue]:
    """Return the server's fields that Vertex AI's variables set; none unless ``AIP_MODE`` is ``PREDICTION``.

    An empty variable counts as unset. A route gets a leading slash.
    """
    if env.get("AIP_MODE") != "PREDICTION":
        return {}
    found: dict[str, SourcedValue] = {}
    for name, key in _FIELDS.items():
        text = env.get(name) or _DEFAULTS.get(name, "")
        if text:
            value = text if key == "port" or text.startswith("/") else "/" + text
            found[key] = SourcedValue(value, name)
    return found
