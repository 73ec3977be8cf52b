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


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tfs_z": 1.0, "penalize_nl": True, "system_prompt": "", "image_data": [], "samplers": ["top_k"]},
        {"tfs_z": None, "samplers": "kypmt", "unknown_field": 5},
        {"samplers": 5},
        {"samplers": [["tfs_z"], {}]},
    ],
)
def test_what_has_its_effect_is_not(body: dict[str, Any]) -> None:
    assert unused_fields(body, ANY) == []


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


def test_what_a_wire_format_leaves_out_stands_behind_it_once_each_and_in_one_line_of_ascii(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    warnings = ["tools.0: x\r\nSet-Cookie: a=\u00e9", "b", "b", "c" * 1000]
    header = as_header([*unused_fields({"tfs_z": 0}, ANY), *warnings])[WARNING_HEADER]
    first, *rest = header.split("; ")
    assert first.startswith("tfs_z")
    assert rest == ["tools.0: x??Set-Cookie: a=?", "b", "c" * 200 + "..."]
    assert header in caplog.text


def test_a_header_has_a_limit() -> None:
    header = as_header([f"tools.{n}" for n in range(1000)])[WARNING_HEADER]
    assert header.endswith("tools.7; and 992 more")
