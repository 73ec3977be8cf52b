"""JSON Schemas that people use, out of packages that carry them: fetched into ``benchmarks/build``, which git ignores.

Nothing is copied into the repository. Licences are those that the packages name.
"""

import copy
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

BUILD = Path(__file__).parents[1] / "build" / "schemas"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A package: from where, which of its files are schemas, and at most how many of them, evenly spread."""

    name: str
    package: str
    registry: str  # pip or npm
    licence: str
    folder: str
    at_most: int
    prepare: Callable[[Json, Mapping[str, bytes], str], Json] = lambda schema, files, name: schema


@dataclass(frozen=True, slots=True)
class Found:
    """One schema of a source."""

    source: str
    name: str
    schema: Json


def _with_definitions(schema: Json, files: Mapping[str, bytes], _: str) -> Json:
    """A Kubernetes schema with the definitions that it uses in it, instead of in a file beside it."""
    everything: Json = json.loads(next(raw for name, raw in files.items() if name.endswith("/_definitions.json")))[
        "$defs"
    ]
    used: Json = {}
    whole = _local(schema, everything, used)
    return {**whole, "$defs": used} if used else whole


def _local(value: Any, everything: Json, used: Json) -> Any:
    if isinstance(value, list):
        return [_local(child, everything, used) for child in value]
    if not isinstance(value, dict):
        return value
    value = {key: _local(child, everything, used) for key, child in value.items()}
    target = value.get("$ref")
    if isinstance(target, str) and "#/$defs/" in target:
        name = target.rpartition("/")[2]
        value["$ref"] = f"#/$defs/{name}"
        if name not in used:
            used[name] = True  # a definition that is being read may refer to itself
            used[name] = _local(copy.deepcopy(everything[name]), everything, used)
    return value


def _with_neighbours(schema: Json, files: Mapping[str, bytes], name: str) -> Json:
    """A schema with the files that it refers to among its definitions, by id."""
    found: dict[str, Json] = {}
    waiting = [(name, schema)]
    while waiting:
        at, value = waiting.pop()
        found[at] = {"$id": f"file:///{at}", **value}
        for target in _files_in(value, at):
            if target not in found and target in files:
                waiting.append((target, json.loads(files[target])))
    root = found.pop(name)
    return {**root, "definitions": root.get("definitions", {}) | found} if found else schema


def _files_in(value: Any, at: str) -> Iterator[str]:
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _files_in(child, at)
    target = value.get("$ref") if isinstance(value, dict) else None
    if isinstance(target, str) and not target.startswith("#"):
        yield urljoin(f"/{at}", urldefrag(target).url).removeprefix("/")


SOURCES = (
    Source("CloudFormation", "cfn-lint==1.58.0", "pip", "MIT-0", "cfnlint/data/schemas/resources/", 160),
    Source(
        *("Kubernetes", "kubernetes-validate==1.37.0", "pip", "Apache-2.0"),
        *("kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict/", 100, _with_definitions),
    ),
    Source("CI and tools", "check-jsonschema==0.39.0", "pip", "Apache-2.0", "check_jsonschema/builtin_schemas/", 60),
    Source("JupyterLab settings", "jupyterlab==4.6.6", "pip", "BSD-3-Clause", "jupyterlab/schemas/", 80),
    Source("Angular generators", "@schematics/angular@21.2.28", "npm", "MIT", "package/", 60),
    Source("webpack options", "webpack@5.112.2", "npm", "MIT", "package/schemas/", 60, _with_neighbours),
    Source("AsyncAPI", "@asyncapi/specs@6.11.1", "npm", "Apache-2.0", "package/schemas/", 40),
    Source("Vega-Lite", "vega-lite@6.4.3", "npm", "BSD-3-Clause", "package/build/vega-lite-schema.json", 1),
)
OFFICIAL = Source("official suite", "jsonschema==4.26.0", "sdist", "MIT", "/json/tests/", 10_000)


def schemas() -> Iterator[Found]:
    """Every schema of the suite, in a fixed order."""
    for source in SOURCES:
        files = read(source)
        names = [name for name in sorted(files) if name.startswith(source.folder) and _is_schema(files[name])]
        step = max(1, -(-len(names) // source.at_most))
        for name in names[::step]:
            yield Found(
                source.name, name.removeprefix(source.folder), source.prepare(json.loads(files[name]), files, name)
            )


def _is_schema(raw: bytes) -> bool:
    found = json.loads(raw)
    keywords = ("properties", "items", "oneOf", "anyOf", "allOf", "$ref", "enum", "patternProperties")
    return (
        isinstance(found, dict) and any(key in found for key in keywords) and isinstance(found.get("$schema", ""), str)
    )


def read(source: Source) -> dict[str, bytes]:
    """The JSON files of a package below the folder of its schemas, by name; fetched where they are not there yet."""
    path = _fetched(source)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".json") and source.folder in name]
            return {name: archive.read(name) for name in names}
    with tarfile.open(path) as archive:
        members = [
            m for m in archive.getmembers() if m.name.endswith(".json") and source.folder in m.name and m.isfile()
        ]
        return {m.name: file.read() for m in members if (file := archive.extractfile(m)) is not None}


def _fetched(source: Source) -> Path:
    folder = BUILD / source.package.replace("/", "_").replace("@", "_").replace("==", "-").strip("_")
    if not folder.is_dir() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        name = source.package.partition("==")[0]
        command = {
            "pip": [*pip, source.package],
            "sdist": [*pip, "--no-binary", name, source.package],
            "npm": ["npm", "pack", "--silent", "--pack-destination", str(folder), source.package],
        }[source.registry]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(path for path in sorted(folder.iterdir()) if path.suffix in (".whl", ".tgz", ".gz"))
