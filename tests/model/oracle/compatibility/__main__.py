"""Compare anew and write the page."""

import sys
import tempfile
from pathlib import Path

from tests.model.oracle.compatibility.compare import compare, servers
from tests.model.oracle.compatibility.page import PAGE, text, unexpected
from tests.model.oracle.compatibility.rows import TABLES

with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as pairs:
    options, endpoints, mistakes, media = ([compare(pairs[row.server], row) for row in rows] for rows in TABLES)
PAGE.write_text(text(endpoints, options, mistakes, media), encoding="utf-8")
tables = (options, endpoints, mistakes, media)
failed = [(found.row.name, unexpected(found)) for table in tables for found in table if unexpected(found)]
for name, reasons in failed:
    print(f"{name}: {'; '.join(reasons)}", file=sys.stderr)
sys.exit(1 if failed else 0)
