"""Records the shapes of requests: structure, types, roles and field names, with placeholders instead of texts.

`tests/unit/dialects/test_recorded_requests.py` parses and renders them with every template. Every text that is not
known to be a name of the API is replaced, so that no prompt of a program is stored.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.media_files import png
from tests.support.real_server import ROOT

RECORDED = ROOT / "tests" / "unit" / "dialects" / "recorded"
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
KEPT = frozenset({
    "type", "role", "name", "status", "effort", "summary", "detail", "media_type", "syntax", "phase", "format",
    "include", "tool_choice", "truncation", "verbosity", "display", "keep", "namespace", "tool_name", "ttl",
    "service_tier", "reasoning_effort", "mime_type", "execution",
})  # fmt: skip
"""Fields whose texts are defined by the API, or are names that must be equal in two places."""
IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "item_id"})
SCHEMAS = frozenset({"parameters", "input_schema", "schema", "output_schema"})
PROSE = frozenset({"title", "examples", "$comment", "default"})
ANY_TEXT = r"start: /(.|\n)+/"
IMAGE = base64.b64encode(png(1, 1)).decode()
MAX_BODIES = 12  # of a program for an endpoint


def write_shapes(runs: Path) -> None:
    """Write a file for each program, from the records below `runs`."""
    RECORDED.mkdir(exist_ok=True)
    shapes: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(runs.glob("*/server/record.jsonl")):
        program = record.parents[1].name.partition(".")[0]
        bodies = shapes.setdefault(program, [])
        for line in record.read_text(encoding="utf-8").splitlines():
            request = json.loads(line)
            if request["path"] in ENDPOINTS and request["status"] == 200 and isinstance(request["body"], dict):
                bodies.append({"path": request["path"], "body": Placeholders().body(request["body"])})
    for program, bodies in shapes.items():
        if not bodies:  # it uses no chat endpoint
            continue
        text = json.dumps(list(_distinct(bodies)), indent=1, ensure_ascii=False) + "\n"
        (RECORDED / f"{program}.json").write_text(text, encoding="utf-8")


class Placeholders:
    """Replaces the texts of one body: each by its own placeholder, equal ids by equal ones."""

    def __init__(self) -> None:
        self._n = 0
        self._ids: dict[str, str] = {}

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the shape of a body. Tools with the structure of an earlier one are dropped unless they are called."""
        called = set(_called(body))
        shape = {key: self._value(key, value) for key, value in body.items() if key != "tools"}
        if isinstance(body.get("tools"), list):
            shape["tools"] = [self._value("tools", tool) for tool in _distinct_tools(body["tools"], called)]
        if "model" in shape:
            shape["model"] = "scripted"
        return shape

    def _value(self, key: str, value: Any) -> Any:
        if key in SCHEMAS and isinstance(value, dict):
            return _without_texts(value)
        if isinstance(value, dict):
            return {name: self._value(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(key, inner) for inner in value]
        return self._text(key, value) if isinstance(value, str) else value

    def _text(self, key: str, text: str) -> str:
        if key in KEPT or not text:
            return text
        if key in IDS:
            return self._ids.setdefault(text, f"call_{len(self._ids) + 1:04d}Ab")
        if key == "arguments":
            return self._arguments(text)
        if key == "definition":
            return ANY_TEXT
        if text.startswith("data:"):
            return f"data:image/png;base64,{IMAGE}"
        if key == "data":
            return IMAGE
        self._n += 1
        return f"Txt{self._n:03d}q"

    def _arguments(self, text: str) -> str:
        try:
            value = json.loads(text)
        except ValueError:
            return text if len(text) < 3 else self._text("", text)
        return json.dumps(self._value("", value))


def _called(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if ("arguments" in value or "input" in value) and isinstance(value.get("name"), str):
            yield value["name"]
        for key, inner in value.items():
            if key != "tools":
                yield from _called(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _called(inner)


def _distinct_tools(tools: list[Any], called: set[str]) -> Iterator[Any]:
    seen = set()
    for tool in tools:
        inner = tool.get("function", tool)
        kind = json.dumps([tool.get("type"), sorted(tool), sorted(inner)])
        if kind not in seen or inner.get("name") in called:
            seen.add(kind)
            members = tool.get("tools")
            yield {**tool, "tools": list(_distinct_tools(members, called))} if isinstance(members, list) else tool


def _without_texts(schema: Any) -> Any:
    """Return a JSON Schema without its texts. The names of properties stay."""
    if isinstance(schema, list):
        return [_without_texts(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, inner in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(inner, dict):
            kept[key] = {name: _without_texts(each) for name, each in inner.items()}
        elif key not in PROSE:
            kept[key] = "what it is" if key == "description" else _without_texts(inner)
    return kept


def _distinct(requests: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the requests with features that no earlier one has, those with the most new features first."""
    remaining = [(request, _features(request)) for request in requests]
    covered: set[str] = set()
    n_of_path: dict[str, int] = {}
    while remaining:
        best = max(remaining, key=lambda pair: (len(pair[1] - covered), -len(pair[1])))
        request, features = best
        if not features - covered:
            return
        remaining.remove(best)
        covered |= features
        n_of_path[request["path"]] = n_of_path.get(request["path"], 0) + 1
        if n_of_path[request["path"]] <= MAX_BODIES:
            yield request


def _features(request: dict[str, Any]) -> set[str]:
    """Return the fields of a request with the structure of their values, its tools, and its pairs of messages."""
    path, body = request["path"], request["body"]
    features = {f"{path} {key}" for key in body}
    features |= {f"{path} {key}={_kind(body[key])}" for key in body if key not in ("messages", "input", "tools")}
    features |= {f"{path} tool {_kind(tool)}" for tool in body.get("tools") or ()}
    items = body.get("messages") or body.get("input")
    kinds = [_kind(item) for item in items] if isinstance(items, list) else [_kind(items)]
    features |= {f"{path} {kind}" for kind in kinds}
    return features | {f"{path} {a} > {b}" for a, b in pairwise(kinds)}


def _kind(value: Any) -> str:
    """Return the structure of a value: its fields, or the distinct kinds of its items, or its type."""
    if isinstance(value, dict):
        own = [value[key] for key in ("type", "role") if isinstance(value.get(key), str)]
        fields = (f"{key}:{_kind(inner)}" for key, inner in sorted(value.items()) if key not in SCHEMAS)
        return f"{own}{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(dict.fromkeys(map(_kind, value)))}]"
    return type(value).__name__
