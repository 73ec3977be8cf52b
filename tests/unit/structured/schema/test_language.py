"""Patterns that are rewritten for llguidance."""

import json

import pytest

from server.structured.grammar.schema.language import readable
from tests.unit.structured.builders import BYTES, matches


def test_a_long_name_pattern_without_anchors_is_followed_next_to_uris() -> None:
    """MaskBench's Github_trivial o78117."""
    schema = {"patternProperties": {"[A-Za-z0-9-_.:]{1,255}": {"type": "string", "format": "uri"}}}
    instance = {f"child-{n}": f"https://example.com/child{n}" for n in range(6)}
    assert matches(BYTES.json_schema(schema), json.dumps(instance))


@pytest.mark.parametrize(
    ("pattern", "shorter"),
    [
        ("[A-Za-z0-9_.:]{1,255}", "[A-Za-z0-9_.:]"),
        (r"\d{2,5}-\d+", r"\d{2}-\d"),
        (".*x.*", "x"),
        (r"\.{2,9}", r"\.{2,9}"),
        ("[a]+|b", "[a]+|b"),
        ("^[a]+$", "^[a]+$"),
    ],
)
def test_no_more_of_the_outer_classes_is_kept_than_a_match_needs(pattern: str, shorter: str) -> None:
    assert readable(pattern) == shorter
