"""Compare anew and write the page."""

import sys
import tempfile
from pathlib import Path

from tests.model.oracle.compatibility.compare import compare, servers
from tests.model.oracle.compatibility.page import PAGE, text, unexpected
from tests.model.oracle.compatibility.rows import ENDPOINTS, MISTAKES, OPTIONS

with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as pairs:
    tables = [[compare(pairs[row.server], row) for row in rows] for rows in (ENDPOINTS, OPTIONS, MISTAKES)]
PAGE.write_text(text(*tables), encoding="utf-8")
failed = [(found.row.name, unexpected(found)) for table in tables for found in table if unexpected(found)]
for name, reasons in failed:
    print(f"{name}: {'; '.join(reasons)}", file=sys.stderr)
sys.exit(1 if failed else 0)
