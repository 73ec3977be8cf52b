"""Every endpoint and option, compared with the real llama-server. `docs/compatibility.md` has the results."""

from collections.abc import Mapping

import pytest

from tests.model.oracle.compatibility.compare import Result, compare, servers
from tests.model.oracle.compatibility.page import PAGE, text, unexpected
from tests.model.oracle.compatibility.rows import TABLES, Row

UPDATE = "run python -m tests.model.oracle.compatibility"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Result]:
    """Results by the `id` of their row."""
    with servers(tmp_path_factory.mktemp("compatibility")) as pairs:
        return {id(row): compare(pairs[row.server], row) for rows in TABLES for row in rows}


@pytest.mark.parametrize("row", [row for rows in TABLES for row in rows], ids=lambda row: row.name)
def test_replies_differ_from_llama_servers_only_intentionally(row: Row, results: Mapping[int, Result]) -> None:
    assert unexpected(results[id(row)]) == []


def test_the_compatibility_page_is_up_to_date(results: Mapping[int, Result]) -> None:
    options, endpoints, invalid, media = ([results[id(row)] for row in rows] for rows in TABLES)
    assert PAGE.read_text(encoding="utf-8") == text(endpoints, options, invalid, media), UPDATE
