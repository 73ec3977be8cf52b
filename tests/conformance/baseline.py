"""Write baseline.json from runs of llama-server: ``python baseline.py RUN.json [RUN.json ...]``.

A test counts as passed if it passed in every run. Unconstrained texts that differ between runs are left out. The marks
of tests that also pass against a server that does nothing are copied from the earlier baseline.json.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(*runs: Path) -> None:
    """Write baseline.json from the results of `runs`."""
    earlier, *results = (json.loads(path.read_text())["tests"] for path in (HERE / "baseline.json", *runs))
    lines = []
    for name, first in results[0].items():
        outcomes = {tests.get(name, {}).get("outcome", "missing") for tests in results}
        entry = {"outcome": first["outcome"] if len(outcomes) == 1 else "flaky"}
        if earlier.get(name, {}).get("passes_null"):
            entry["passes_null"] = True
        texts = [[each["text"] for each in tests.get(name, {}).get("relaxed", [])] for tests in results]
        if texts[0] and all(other == texts[0] for other in texts):
            entry["relaxed"] = texts[0]
        lines.append(f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}")
    text = ",\n".join(lines)
    head = '{\n "server": "llama-server of llama-cpp-python 0.3.36",\n "tests": {\n'
    (HERE / "baseline.json").write_text(f"{head}{text}\n }}\n}}\n")


main(*map(Path, sys.argv[1:]))
