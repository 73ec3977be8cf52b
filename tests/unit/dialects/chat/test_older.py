from typing import Any

import pytest

from server.dialects.warnings import WARNING_HEADER, ByType, Fields, as_header, unused_fields

ANY = ByType({})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"tfs_z": 0.9}, "tfs_z"),
        ({"samplers": ["top_k", "tfs_z"]}, "tfs_z in samplers"),
        ({"samplers": "kfypmt"}, "tfs_z in samplers"),
        ({"penalize_nl": False}, "penalize_nl"),
        ({"system_prompt": {"prompt": "x"}}, "system_prompt is ignored"),
        ({"functions": [{"name": "f"}]}, "functions is ignored: send tools"),
        ({"image_data": [{"data": "x", "id": 1}]}, "image_data"),
    ],
)
def test_what_has_no_effect_is_named(body: dict[str, Any], named: str) -> None:
    header = as_header(unused_fields(body, ANY))[WARNING_HEADER]
    assert header.startswith(named)
    assert header.isascii()


def test_a_field_that_nobody_knows_is_named_and_a_hint_is_not() -> None:
    body = {
        "max_token": 5,
        "temperature": 1,
        "metadata": {"a": "b"},
        "prompt_cache_retention": "24h",
        "stpo": None,
        "tfs_z": 1,
    }
    header = as_header(unused_fields(body, Fields("temperature")))[WARNING_HEADER]
    assert header == "'max_token' is ignored: unknown field"
