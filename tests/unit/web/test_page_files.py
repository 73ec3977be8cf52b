"""What the page's files must be: what comes from npm is what was pinned, and the first view is small."""

import gzip
import hashlib
import json
import re
from pathlib import Path, PurePosixPath

STATIC = Path(__file__).parents[3] / "server" / "web" / "static"
VENDOR = STATIC / "vendor"
FIRST_VIEW_BYTES = 300_000
_IMPORT = re.compile(r"""(?:^|[;}\n])\s*(?:import|export)\b[^;'"()]*?from\s*["'](\.[^"']+)["']""")
_LATER = re.compile(r"""import\(["'](\.[^"']+)["']\)""")


def modules_from(name: str) -> set[str]:
    """A module and all that it imports at once, by their paths below static/."""
    found: set[str] = set()
    left = [name]
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left += [resolved(at, where) for where in _IMPORT.findall((STATIC / at).read_text())]
    return found


def resolved(importer: str, where: str) -> str:
    place = (STATIC / PurePosixPath(importer).parent / where).resolve()
    assert place.is_file(), f"{importer} imports {where}, which is not there"
    return place.relative_to(STATIC.resolve()).as_posix()


def packed(name: str) -> int:
    return len(gzip.compress((STATIC / name).read_bytes(), 9))


def test_third_party_files_are_those_that_were_pinned() -> None:
    listed = json.loads((VENDOR / "vendor.json").read_text())
    sums = {name: digest for package in listed for name, digest in package["files"].items()}
    there = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert there == {*sums, "vendor.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    for package in listed:
        assert package["license"]
        assert package["integrity"].startswith("sha512-")
        assert any(name.startswith("licenses/") for name in package["files"]), package["package"]


def test_the_first_view_is_below_300_kb() -> None:
    page = (STATIC / "index.html").read_text()
    first = set(re.findall(r'(?:src|href)="\{\{app\}\}/([^"]+)"', page))
    modules = set().union(*(modules_from(name) for name in first if name.endswith(".js")))
    assert "vendor/preact.js" in modules
    assert not modules & {"vendor/katex.js", "vendor/highlight.js", "vendor/uplot.js"}
    total = sum(map(packed, modules | first | {"index.html", "favicon.svg"}))
    assert total < FIRST_VIEW_BYTES


def test_every_import_leads_to_a_file_and_none_to_another_host() -> None:
    for path in (STATIC / "app").rglob("*.js"):
        text = path.read_text()
        name = path.relative_to(STATIC).as_posix()
        for where in (*_IMPORT.findall(text), *_LATER.findall(text)):
            resolved(name, where)
        assert not re.search(r"https?://(?!www\.w3\.org|localhost:)", text), name


def test_every_text_has_both_languages() -> None:
    script = (STATIC / "app" / "lib" / "texts.js").read_text()
    ((words, entry),) = re.findall(r"const WORDS = `(.*?)`;.*?WORDS\.matchAll\(/(.*?)/gm\)", script, re.S)
    names = [name for name, _english, _german in re.findall(entry, words, re.M)]
    others = re.sub(entry, "", words, flags=re.M).split("\n")
    assert [line for line in others if line and not line.startswith("# ")] == []
    assert len(names) == len(set(names)) > 80
    used = {key for path in (STATIC / "app").rglob("*.js") for key in re.findall(r'\bt\("(\w+)"', path.read_text())}
    assert used - set(names) == set()
