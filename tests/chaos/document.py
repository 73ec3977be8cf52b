"""Schemathesis over the API's own description, against a real server: ``make schemathesis``."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.real_server import llamapool

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo.gguf"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)
LEFT_OUT = "/pull|/cors-proxy|^/models$|/page/"
"""What would reach for the network, or never ends."""


def for_schemathesis(document: dict[str, Any]) -> dict[str, Any]:
    """Without what it reads otherwise than it is meant, or can't know.

    Of an event stream the document has what stands in ``data``, which `tests/api/test_openapi.py` compares;
    ``response_fields`` leaves out whatever it does not name.
    """
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation["responses"].get("200", {}).get("content", {})
            if "text/event-stream" in content:
                content["text/event-stream"] = {"schema": {}}
    document["components"]["schemas"]["NativeCompletion"]["required"] = []
    return document


def main() -> int:
    """Schemathesis' own status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=420)
    parser.add_argument("--examples", type=int, default=8, help="of each operation and kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as slots:
        flags = ("--parallel", "2", "-c", "512", "--metrics", "--props", "--slot-save-path", slots, "--offline")
        with llamapool(DEMO, *flags, "--request-timeout-s", "20") as server:
            described = Path(slots) / "openapi.json"
            described.write_text(json.dumps(for_schemathesis(server.get("/openapi.json"))))
            return subprocess.run(
                [
                    *(
                        options.schemathesis.absolute(),
                        "--config-file",
                        str(Path(__file__).with_name("schemathesis.toml")),
                    ),
                    *("run", str(described), "--url", server.base_url, "--checks", CHECKS, "--workers", "2"),
                    *("--phases", "coverage,fuzzing", "--max-examples", str(options.examples)),
                    *("--exclude-path-regex", LEFT_OUT, "--max-time", str(options.seconds)),
                ],
                check=False,
                cwd=slots,  # it keeps what it found
            ).returncode


if __name__ == "__main__":
    sys.exit(main())
