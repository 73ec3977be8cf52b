"""Compare the servers and write the page."""

import sys
import tempfile
from pathlib import Path

from tests.model.oracle.compatibility.compare import compare, servers
from tests.model.oracle.compatibility.page import PAGE, text, unexpected
from tests.model.oracle.compatibility.rows import TABLES

with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as pairs:
    tables = options, endpoints, invalid, media = [[compare(pairs[row.server], row) for row in rows] for rows in TABLES]
PAGE.write_text(text(endpoints, options, invalid, media), encoding="utf-8")
failed = [(result.row.name, unexpected(result)) for table in tables for result in table if unexpected(result)]
for name, differences in failed:
    print(f"{name}: {'; '.join(differences)}", file=sys.stderr)
sys.exit(1 if failed else 0)
