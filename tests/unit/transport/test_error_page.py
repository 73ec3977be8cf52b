"""docs/errors.md has every status and type that a reply may have."""

from pathlib import Path

from server.transport.errors import _KINDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "errors.md"


def test_every_status_and_type_has_its_row() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    told = {(int(status), kind.strip().strip("`")) for status, kind in rows if status.strip().isdigit()}
    assert told == {(status, kind) for _, status, kind in _KINDS}
