"""`Pair`: the same request to Llamapool and to llama-server; and the differences of two replies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.real_server import RealServer, Reply

ONLY_ASCII = [[token, False] for token in range(128, 256)]
"""A ``logit_bias`` that bans byte tokens above 0x7f. Otherwise random weights generate invalid UTF-8, for which JSON
libraries write different numbers of U+FFFD. The tests of streams cover incomplete characters."""
VOLATILE = ("id", "created", "system_fingerprint", "timings")
"""Fields that differ between any two replies."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Llamapool and llama-server."""

    ours: RealServer
    theirs: RealServer

    def request(self, method: str, path: str, body: object = None) -> tuple[Reply, Reply]:
        """Send a request to both, and return the replies with any status."""
        return self.ours.request(method, path, body), self.theirs.request(method, path, body)

    def get(self, path: str) -> tuple[Any, Any]:
        """Return the JSON of both replies to a GET that must succeed."""
        return self.ours.get(path), self.theirs.get(path)

    def post(self, path: str, body: object) -> tuple[Any, Any]:
        """Return the JSON of both replies to a POST that must succeed."""
        return self.ours.post(path, body), self.theirs.post(path, body)

    def events(self, path: str, body: Mapping[str, object]) -> tuple[list[Any], list[Any]]:
        """Return the parsed events of both streams. Each stream must end with ``[DONE]``, which is omitted."""
        streams = []
        for server in (self.ours, self.theirs):
            *events, done = server.events(path, {**body, "stream": True})
            assert done == "[DONE]", done
            streams.append([json.loads(event) for event in events])
        return streams[0], streams[1]

    def native_events(self, path: str, body: Mapping[str, object]) -> tuple[list[Any], list[Any]]:
        """Return the parsed events of both streams of an API without ``[DONE]``."""
        ours, theirs = (server.events(path, {**body, "stream": True}) for server in (self.ours, self.theirs))
        return [json.loads(event) for event in ours], [json.loads(event) for event in theirs]


def json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def shape_differences(ours: object, theirs: object, path: str = "") -> set[str]:
    """Return the differences in keys, JSON types and array lengths.

    ``+a.b``: a key that only `ours` has. ``-a.b``: a key that only `theirs` has. ``a.b: number/string``: JSON types of
    both. ``a.b: 2/3 elements``: array lengths of both. If several elements of an array have the same difference, only
    the first one is returned.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        differences = {f"+{path}{key}" for key in ours.keys() - theirs.keys()}
        differences |= {f"-{path}{key}" for key in theirs.keys() - ours.keys()}
        for key in ours.keys() & theirs.keys():
            differences |= shape_differences(ours[key], theirs[key], f"{path}{key}.")
        return differences
    name = path.removesuffix(".")
    if isinstance(ours, list) and isinstance(theirs, list):
        differences = set() if len(ours) == len(theirs) else {f"{name}: {len(ours)}/{len(theirs)} elements"}
        seen = set[str]()
        for i, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            of_element = shape_differences(own, other)
            differences |= {_with_path(difference, f"{path}{i}.") for difference in of_element - seen}
            seen |= of_element
        return differences
    return set() if json_type(ours) == json_type(theirs) else {f"{name}: {json_type(ours)}/{json_type(theirs)}"}


def _with_path(difference: str, path: str) -> str:
    """Add the path of an element to its difference."""
    if difference.startswith(("+", "-")):
        return f"{difference[0]}{path}{difference[1:]}"
    return f"{path.removesuffix('.')}{difference}" if difference.startswith(":") else f"{path}{difference}"


def without_volatile(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply without the fields in `VOLATILE`."""
    return {name: value for name, value in reply.items() if name not in VOLATILE}


def rounded(value: Any) -> Any:
    """Round all floats in `value` to six digits. llama-server writes 32-bit floats with the digits of 64 bits."""
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
