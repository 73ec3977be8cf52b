"""Two servers side by side, and what differs in the shape of two replies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.real_server import RealServer, Reply

ONLY_ASCII = [[token, False] for token in range(128, 256)]
"""A ``logit_bias`` that forbids the tokens of single bytes past 0x7f: random weights would write invalid UTF-8, and
how many U+FFFD stand for it is a matter of the JSON library. The tests of streams cover what is cut in a character."""
VOLATILE = ("id", "created", "system_fingerprint", "timings")  # differ between any two replies


@dataclass(frozen=True, slots=True)
class Pair:
    """Llamapool and llama-server."""

    ours: RealServer
    theirs: RealServer

    def request(self, method: str, path: str, body: object = None) -> tuple[Reply, Reply]:
        """The same request to both, whatever the status."""
        return self.ours.request(method, path, body), self.theirs.request(method, path, body)

    def get(self, path: str) -> tuple[Any, Any]:
        """Both replies to a GET that must succeed."""
        return self.ours.get(path), self.theirs.get(path)

    def post(self, path: str, body: object) -> tuple[Any, Any]:
        """Both replies to a POST that must succeed."""
        return self.ours.post(path, body), self.theirs.post(path, body)

    def events(self, path: str, body: Mapping[str, object]) -> tuple[list[Any], list[Any]]:
        """Both streams, parsed; each must end with ``[DONE]``, which is left out."""
        streams = []
        for server in (self.ours, self.theirs):
            *events, done = server.events(path, {**body, "stream": True})
            assert done == "[DONE]", done
            streams.append([json.loads(event) for event in events])
        return streams[0], streams[1]

    def native_events(self, path: str, body: Mapping[str, object]) -> tuple[list[Any], list[Any]]:
        """Both native streams, parsed, which have no ``[DONE]``."""
        ours, theirs = (server.events(path, {**body, "stream": True}) for server in (self.ours, self.theirs))
        return [json.loads(event) for event in ours], [json.loads(event) for event in theirs]


def kind(value: object) -> str:
    """JSON's word for a type; whole numbers are numbers like others."""
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
    """Return the keys that only one of them has, the values of another JSON type, and the arrays of another length.

    Arrays are compared element by element; what several elements have in common is said of the first one. ``+a.b`` is a
    key that only Llamapool has, ``-a.b`` one that it lacks, ``a.b: number/string`` another type, ``a.b: 2/3 elements``
    another length (ours first).
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = {f"+{path}{key}" for key in ours.keys() - theirs.keys()}
        found |= {f"-{path}{key}" for key in theirs.keys() - ours.keys()}
        for key in ours.keys() & theirs.keys():
            found |= shape_differences(ours[key], theirs[key], f"{path}{key}.")
        return found
    if isinstance(ours, list) and isinstance(theirs, list):
        found = set() if len(ours) == len(theirs) else {f"{path.removesuffix('.')}: {len(ours)}/{len(theirs)} elements"}
        seen = set[str]()
        for i, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            here = shape_differences(own, other)
            found |= {_within(difference, f"{path}{i}.") for difference in here - seen}
            seen |= here
        return found
    if kind(ours) != kind(theirs):
        return {f"{path.removesuffix('.')}: {kind(ours)}/{kind(theirs)}"}
    return set()


def _within(difference: str, path: str) -> str:
    """Return a difference of an element as one of its array's, whose path is `path`."""
    if difference.startswith(("+", "-")):
        return f"{difference[0]}{path}{difference[1:]}"
    return f"{path.removesuffix('.')}{difference}" if difference.startswith(":") else f"{path}{difference}"


def steady(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A reply without what differs between any two."""
    return {name: value for name, value in reply.items() if name not in VOLATILE}


def rounded(value: Any) -> Any:
    """`value` with every number at six digits: llama-server writes its 32-bit floats with the digits of 64."""
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
