"""The files of the web UI: checksums of npm packages, size of the first view, imports, translations."""

import gzip
import hashlib
import json
import re
from pathlib import Path, PurePosixPath

STATIC = Path(__file__).parents[3] / "server" / "web" / "static"
VENDOR = STATIC / "vendor"
FIRST_VIEW_BYTES = 300_000
_IMPORT = re.compile(r"""(?:^|[;}\n])\s*(?:import|export)\b[^;'"()]*?from\s*["'](\.[^"']+)["']""")
_DYNAMIC_IMPORT = re.compile(r"""import\(["'](\.[^"']+)["']\)""")


def modules_from(name: str) -> set[str]:
    """Return a module and all its static imports, recursively, as paths below static/."""
    modules: set[str] = set()
    pending = [name]
    while pending:
        module = pending.pop()
        if module not in modules:
            modules.add(module)
            pending += [resolved(module, path) for path in _IMPORT.findall((STATIC / module).read_text())]
    return modules


def resolved(importer: str, path: str) -> str:
    file = (STATIC / PurePosixPath(importer).parent / path).resolve()
    assert file.is_file(), f"{importer} imports {path}, which does not exist"
    return file.relative_to(STATIC.resolve()).as_posix()


def gzipped_bytes(name: str) -> int:
    return len(gzip.compress((STATIC / name).read_bytes(), 9))


def test_third_party_files_match_their_pinned_checksums() -> None:
    packages = json.loads((VENDOR / "vendor.json").read_text())
    sums = {name: digest for package in packages for name, digest in package["files"].items()}
    files = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert files == {*sums, "vendor.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    for package in packages:
        assert package["license"]
        assert package["integrity"].startswith("sha512-")
        assert any(name.startswith("licenses/") for name in package["files"]), package["package"]


def test_the_first_view_is_smaller_than_300_kb() -> None:
    html = (STATIC / "index.html").read_text()
    first = set(re.findall(r'(?:src|href)="\{\{app\}\}/([^"]+)"', html))
    modules = set().union(*(modules_from(name) for name in first if name.endswith(".js")))
    assert "vendor/preact.js" in modules
    assert not modules & {"vendor/katex.js", "vendor/highlight.js", "vendor/uplot.js"}
    total = sum(map(gzipped_bytes, modules | first | {"index.html", "favicon.svg"}))
    assert total < FIRST_VIEW_BYTES


def test_every_import_is_a_file_and_no_script_names_another_host() -> None:
    for path in (STATIC / "app").rglob("*.js"):
        text = path.read_text()
        name = path.relative_to(STATIC).as_posix()
        for imported in (*_IMPORT.findall(text), *_DYNAMIC_IMPORT.findall(text)):
            resolved(name, imported)
        assert not re.search(r"https?://(?!www\.w3\.org|localhost:)", text), name


def test_every_text_is_translated() -> None:
    script = (STATIC / "app" / "lib" / "texts.js").read_text()
    ((words, entry),) = re.findall(r"const WORDS = `(.*?)`;.*?WORDS\.matchAll\(/(.*?)/gm\)", script, re.S)
    names = [name for name, _english, _german in re.findall(entry, words, re.M)]
    others = re.sub(entry, "", words, flags=re.M).split("\n")
    assert [line for line in others if line and not line.startswith("# ")] == []
    assert len(names) == len(set(names)) > 80
    used = {key for path in (STATIC / "app").rglob("*.js") for key in re.findall(r'\bt\("(\w+)"', path.read_text())}
    assert used - set(names) == set()
