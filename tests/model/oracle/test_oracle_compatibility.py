"""Every endpoint and option beside the real llama-server; `docs/compatibility.md` says what comes out here."""

from collections.abc import Iterator, Mapping

import pytest

from tests.model.oracle.comparison import Pair
from tests.model.oracle.compatibility.compare import Found, compare, servers
from tests.model.oracle.compatibility.page import PAGE, text, unexpected
from tests.model.oracle.compatibility.rows import TABLES, Row

RENEW = "run python -m tests.model.oracle.compatibility"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Pair]]:
    with servers(tmp_path_factory.mktemp("compatibility")) as started:
        yield started


@pytest.fixture(scope="module")
def found(pairs: Mapping[str, Pair]) -> Mapping[int, Found]:
    return {id(row): compare(pairs[row.server], row) for rows in TABLES for row in rows}


@pytest.mark.parametrize("row", [row for rows in TABLES for row in rows], ids=lambda row: row.name)
def test_a_client_of_llama_server_finds_what_it_expects(row: Row, found: Mapping[int, Found]) -> None:
    assert unexpected(found[id(row)]) == []


def test_the_page_says_what_came_out(found: Mapping[int, Found]) -> None:
    options, endpoints, mistakes, media = ([found[id(row)] for row in rows] for rows in TABLES)
    assert PAGE.read_text(encoding="utf-8") == text(endpoints, options, mistakes, media), RENEW
