"""Read and write YAML for people: a value that fits is on one line, and duplicate keys are errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

WIDTH = 118


class UniqueLoader(yaml.SafeLoader):
    """A loader that rejects duplicate keys. PyYAML would drop the first of two test cases with one name."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises ValueError for a duplicate key."""
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise ValueError(f"duplicate key: {node.start_mark}")
        return found


def loaded(path: Path) -> Any:
    """Return the value of a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), UniqueLoader)


def dumped(value: dict[str, Any]) -> str:
    """Return `value` as YAML, with a blank line before each key."""
    return "\n".join("\n".join(_lines(inner, 2, f"{_flow(key)}: ")) + "\n" for key, inner in value.items())


def _lines(value: Any, indent: int, before: str) -> Iterator[str]:
    """Yield the lines of `value` after `before`, indented by `indent` if there are several."""
    if len(line := before + _flow(value)) <= WIDTH or not value or not isinstance(value, dict | list):
        yield line
        return
    first = before if before.endswith("- ") else " " * indent
    if first != before:
        yield before.rstrip()
    for number, (key, inner) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
        name = f"{_flow(key)}: " if isinstance(value, dict) else "- "
        here = first if number == 0 else " " * len(first)
        yield from _lines(inner, len(here) + 2, here + name)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and value.isprintable() and value:
        for text in (value, f"'{value}'"):
            try:
                if yaml.safe_load(f"[{{{text}: {text}}}]") == [{value: value}]:
                    return text
            except yaml.YAMLError:
                pass
    text = json.dumps(value, ensure_ascii=False)
    return {"Infinity": ".inf", "-Infinity": "-.inf"}.get(text, text) if isinstance(value, float) else text
