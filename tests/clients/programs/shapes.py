"""What the programs sent, as shapes: structure, types, roles and names of fields; every text is a placeholder.

`tests/unit/dialects/test_recorded_requests.py` reads and renders them with every template. No prompt of a program is
kept: what is not known to be a name of the API is replaced.
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
"""Fields whose texts are the API's own words, or names that must be equal in two places."""
IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "item_id"})
SCHEMAS = frozenset({"parameters", "input_schema", "schema", "output_schema"})
PROSE = frozenset({"title", "examples", "$comment", "default"})
ANY_TEXT = r"start: /(.|\n)+/"
PICTURE = base64.b64encode(png(1, 1)).decode()
MOST_BODIES = 12  # of one program and endpoint


def write_shapes(runs: Path) -> None:
    """A file for each program, out of the records under `runs`."""
    RECORDED.mkdir(exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(runs.glob("*/server/record.jsonl")):
        program = record.parents[1].name.partition(".")[0]
        bodies = found.setdefault(program, [])
        for line in record.read_text(encoding="utf-8").splitlines():
            asked = json.loads(line)
            if asked["path"] in ENDPOINTS and asked["status"] == 200 and isinstance(asked["body"], dict):
                bodies.append({"path": asked["path"], "body": Placeholders().body(asked["body"])})
    for program, asked in found.items():
        if not asked:  # no chat
            continue
        text = json.dumps(list(_telling(asked)), indent=1, ensure_ascii=False) + "\n"
        (RECORDED / f"{program}.json").write_text(text, encoding="utf-8")


class Placeholders:
    """Those of one body: each text gets one of its own, equal ids stay equal."""

    def __init__(self) -> None:
        self._n = 0
        self._ids: dict[str, str] = {}

    def body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Its shape. A tool like another one is left out unless it is called."""
        called = set(_called(body))
        shape = {key: self._value(key, value) for key, value in body.items() if key != "tools"}
        if isinstance(body.get("tools"), list):
            shape["tools"] = [self._value("tools", tool) for tool in _different(body["tools"], called)]
        if "model" in shape:
            shape["model"] = "scripted"
        return shape

    def _value(self, key: str, value: Any) -> Any:
        if key in SCHEMAS and isinstance(value, dict):
            return _bare(value)
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
            return f"data:image/png;base64,{PICTURE}"
        if key == "data":
            return PICTURE
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


def _different(tools: list[Any], called: set[str]) -> Iterator[Any]:
    seen = set()
    for tool in tools:
        inner = tool.get("function", tool)
        kind = json.dumps([tool.get("type"), sorted(tool), sorted(inner)])
        if kind not in seen or inner.get("name") in called:
            seen.add(kind)
            within = tool.get("tools")
            yield {**tool, "tools": list(_different(within, called))} if isinstance(within, list) else tool


def _bare(schema: Any) -> Any:
    """A JSON Schema without its prose. The names of properties stay."""
    if isinstance(schema, list):
        return [_bare(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, inner in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(inner, dict):
            kept[key] = {name: _bare(one) for name, one in inner.items()}
        elif key not in PROSE:
            kept[key] = "what it is" if key == "description" else _bare(inner)
    return kept


def _telling(asked: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those that show something that no one before them has shown, those that show most first."""
    marked = [(one, _marks(one)) for one in asked]
    shown: set[str] = set()
    n_of: dict[str, int] = {}
    while marked:
        best = max(marked, key=lambda pair: (len(pair[1] - shown), -len(pair[1])))
        one, marks = best
        if not marks - shown:
            return
        marked.remove(best)
        shown |= marks
        n_of[one["path"]] = n_of.get(one["path"], 0) + 1
        if n_of[one["path"]] <= MOST_BODIES:
            yield one


def _marks(one: dict[str, Any]) -> set[str]:
    body = one["body"]
    marks = {f"{one['path']} {key}" for key in body}
    marks |= {f"{one['path']} {key}={_kind(body[key])}" for key in body if key not in ("messages", "input", "tools")}
    marks |= {f"{one['path']} tool {_kind(tool)}" for tool in body.get("tools") or ()}
    items = body.get("messages") or body.get("input")
    kinds = [_kind(item) for item in items] if isinstance(items, list) else [_kind(items)]
    marks |= {f"{one['path']} {kind}" for kind in kinds}
    return marks | {f"{one['path']} {a} > {b}" for a, b in pairwise(kinds)}


def _kind(value: Any) -> str:
    """What something is like: fields, and of lists the kinds of what is in them."""
    if isinstance(value, dict):
        own = [value[key] for key in ("type", "role") if isinstance(value.get(key), str)]
        fields = (f"{key}:{_kind(inner)}" for key, inner in sorted(value.items()) if key not in SCHEMAS)
        return f"{own}{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(dict.fromkeys(map(_kind, value)))}]"
    return type(value).__name__
