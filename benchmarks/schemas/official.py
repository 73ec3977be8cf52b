"""Run the official JSON-Schema-Test-Suite against the compiler: false acceptances and false rejections.

``python -m benchmarks.schemas.official [--optional]``

Each instance is fed byte by byte to the constraint of its schema. Objects are tried in all orders of their members,
since a constraint keeps the schema's order. Accepting an invalid instance is a fault. Rejecting a valid one only limits
the model. The source distribution of ``jsonschema`` contains the suite. See ``benchmarks/experiments.md``.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

from benchmarks.schemas.walk import BenchVocab
from server.errors import InvalidRequest
from server.structured.grammar.compiler import GrammarCompiler

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
SUITE, FOLDER = "jsonschema==4.26.0", "/json/tests/"
BUILD = Path(__file__).parents[1] / "build" / "schemas"  # git ignores it
MAX_MEMBERS = 4  # of an object whose members are tried in all orders


def texts(instance: Any) -> list[str]:
    """Return the JSON texts of an instance."""
    orders = [instance]
    if isinstance(instance, dict) and len(instance) <= MAX_MEMBERS:
        orders = [dict(order) for order in permutations(instance.items())]
    return [json.dumps(order, ensure_ascii=False, separators=(",", ":")) for order in orders]


def accepts(compiler: GrammarCompiler, schema: Any, text: str) -> bool:
    """Return whether the constraint accepts the text as a complete output."""
    constraint = compiler.json_schema(schema)
    for byte in text.encode("utf-8", "surrogatepass"):
        if not constraint.allows(byte):
            return False
        constraint.accept(byte)
    return constraint.complete


def read_suite() -> dict[str, bytes]:
    """Return the suite's files by name. The source distribution is downloaded once."""
    folder = BUILD / SUITE.replace("==", "-")
    if not list(folder.glob("*.tar.gz")):
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema"]
        subprocess.run([*download, "--dest", str(folder), SUITE], check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        named = [each for each in archive if FOLDER in each.name and each.name.endswith(".json") and each.isfile()]
        return {each.name: file.read() for each in named if (file := archive.extractfile(each)) is not None}


def keyword(refused: str) -> str:
    """Return the keyword that an error names."""
    if "regex" in refused:
        return "pattern"
    found = re.search(r"keyword '([^']+)'|('oneOf' whose branches)|(\$ref)", refused)
    if found:
        return next(part for part in found.groups() if part).strip("'")
    return re.sub(r"/[^ ]*/|'[^']*'|\"[^\"]*\"|\d+", "…", refused.removeprefix("json_schema: "))[:80]


def main() -> None:
    parser = argparse.ArgumentParser(description="The official JSON Schema test suite against the compiler.")
    parser.add_argument("--optional", action="store_true", help="the optional tests, too")
    optional = parser.parse_args().optional
    compiler = GrammarCompiler(BenchVocab(1000))
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    files = read_suite()
    for name in sorted(files):
        draft, _, rest = name.partition(FOLDER)[2].partition("/")
        if draft not in DRAFTS or ("/" in rest and not (optional and rest.count("/") == 1)):
            continue
        for group in json.loads(files[name]):
            schema = group["schema"]
            if isinstance(schema, dict) and "$schema" not in schema:
                schema = {"$schema": DRAFTS[draft], **schema}
            counts["schemas"] += 1
            try:
                compiler.json_schema(schema)
            except InvalidRequest as error:
                refused[keyword(error.message)] += 1
                continue
            counts["compiled"] += 1
            for test in group["tests"]:
                accepted = any(accepts(compiler, schema, text) for text in texts(test["data"]))
                wrong = "invalid, but accepted" if accepted else "valid, but refused"
                verdict = "right" if accepted == test["valid"] else wrong
                counts[verdict] += 1
                if verdict.startswith("invalid"):
                    print(f"accepted: {draft} {rest}: {group['description']}: {test['description']}")
    print(*(f"{n} {what}" for what, n in counts.items()), sep=", ")
    print("refused:", *(f"{n} {what}" for what, n in refused.most_common()), sep="\n  ")


if __name__ == "__main__":
    main()
