"""Run Schemathesis with /openapi.json against a real server (``make schemathesis``)."""

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
EXCLUDED_PATHS = "/pull|/cors-proxy|^/models$|/page/"
"""Operations that use the network or never end."""


def for_schemathesis(document: dict[str, Any]) -> dict[str, Any]:
    """Relax the schemas that Schemathesis cannot check. Returns `document`, changed in place.

    The schema of an event stream describes one ``data`` value, which `tests/api/test_openapi.py` checks.
    ``response_fields`` removes required fields from a native completion.
    """
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation["responses"].get("200", {}).get("content", {})
            if "text/event-stream" in content:
                content["text/event-stream"] = {"schema": {}}
    document["components"]["schemas"]["NativeCompletion"]["required"] = []
    return document


def main() -> int:
    """Return the exit status of Schemathesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=420)
    parser.add_argument("--examples", type=int, default=8, help="number for each operation and phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as slots:
        flags = ("--parallel", "2", "-c", "512", "--metrics", "--props", "--slot-save-path", slots, "--offline")
        with llamapool(DEMO, *flags, "--request-timeout-s", "20") as server:
            document = Path(slots) / "openapi.json"
            document.write_text(json.dumps(for_schemathesis(server.get("/openapi.json"))))
            return subprocess.run(
                [
                    *(options.schemathesis.absolute(), "--config-file", Path(__file__).with_name("schemathesis.toml")),
                    *("run", str(document), "--url", server.base_url, "--checks", CHECKS, "--workers", "2"),
                    *("--phases", "coverage,fuzzing", "--max-examples", str(options.examples)),
                    *("--exclude-path-regex", EXCLUDED_PATHS, "--max-time", str(options.seconds)),
                ],
                check=False,
                cwd=slots,  # it writes its cache into the working directory
            ).returncode


if __name__ == "__main__":
    sys.exit(main())
