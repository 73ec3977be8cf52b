"""Files found by their names, and lines found in them. Each function takes a tool's parameters and gives its answer."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.web.tools.catalogue import MOST_FOUND
from server.web.tools.files import place_of

LIST_S = 15.0
MOST_FILE_BYTES = 16 << 20
JUNK = frozenset(
    (
        *(".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv", "dist", "build", "target"),
        *(".cache", ".idea", ".vscode"),
    )
)  # llama-server's list: listed but not searched
Json = dict[str, Any]


@dataclass(slots=True)
class Listing:
    """The contents of a folder: relative paths, with a trailing slash for folders."""

    entries: list[str] = field(default_factory=list)
    complete: bool = True


def file_glob_search(params: Json) -> Json:
    """Find files by name."""
    base, wanted, limit = place_of(params["path"]), params.get("type", "file"), params.get("limit", MOST_FOUND)
    if wanted not in ("file", "dir", "all"):
        return {"error": f'invalid type: {wanted} (expected "file", "dir" or "all")'}
    if limit < 1:
        return {"error": f"invalid limit: {limit} (expected 1 or more)"}
    if not base.is_dir():
        return {"error": f"path does not exist or is not a directory: {params['path']}"}
    listing = listed(base, params.get("max_depth", 0), wanted)
    fits = chosen(params)
    found = [entry for entry in listing.entries if fits(entry.rstrip("/"))]
    shown = found[: min(limit, MOST_FOUND)]
    text = "".join(f"{entry}\n" for entry in shown) + f"\n---\nTotal matches: {len(found)}\n"
    if len(found) > len(shown):
        text += f"[{len(shown)} results limit reached ({len(found)} total matches). Refine the glob pattern to narrow "
        text += "the search.]\n"
    if not listing.complete:
        text += "[results truncated: time budget or unreadable directory]\n"
    entries = [{"path": entry.rstrip("/"), "type": "dir" if entry.endswith("/") else "file"} for entry in shown]
    return {"plain_text_response": text, "entries": entries, "base": base.as_posix()}


def grep_search(params: Json) -> Json:
    """Find lines, in grep's output format."""
    source = re.escape(params["pattern"]) if params.get("literal") else params["pattern"]
    try:
        pattern = re.compile(source, re.IGNORECASE if params.get("ignore_case") else 0)
    except (re.error, RecursionError, OverflowError) as error:
        return {"error": f"invalid regex: {error}"}
    place = place_of(params["path"])
    if place.is_file():
        places = [(place, params["path"])]
    elif place.is_dir():
        fits = chosen(params)
        places = [(place / entry, entry) for entry in listed(place, 0, "file").entries if fits(entry)]
    else:
        return {"error": f"path does not exist: {params['path']}"}
    around = max(0, params.get("context_lines", 0))
    numbered = params.get("return_line_numbers", False) or around > 0
    text: list[str] = []
    total = 0
    for file, name in places:
        lines = lines_of(file)
        for i, line in enumerate(lines):
            if not pattern.search(line):
                continue
            if total == MOST_FOUND:
                text.append(f"\n---\nTotal matches: {total}\n[{MOST_FOUND} matches limit reached. Narrow the ")
                text.append("path/pattern/include to see more.]\n")
                return {"plain_text_response": "".join(text)}
            total += 1
            for j in range(max(0, i - around), min(len(lines), i + around + 1)):
                mark = ":" if j == i else "-"
                text.append(f"{name}{mark}{f'{j + 1}{mark}' if numbered else ''}{lines[j]}\n")
            if around:
                text.append("--\n")
    return {"plain_text_response": "".join(text) + f"\n---\nTotal matches: {total}\n"}


def lines_of(file: Path) -> list[str]:
    """Return the lines of a text file; none if it can't be read or is too large."""
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            return []
        return file.read_text("utf-8", "replace").removesuffix("\n").split("\n")
    except OSError:
        return []


def listed(base: Path, max_depth: int, wanted: str) -> Listing:
    """List entries of this kind; `max_depth` 0 = any depth."""
    deep = max_depth if max_depth > 0 else 10**6
    if wanted == "file" and (known := _of_git(base)) is not None:
        return Listing([entry for entry in known if entry.count("/") < deep and (base / entry).is_file()])
    until = time.monotonic() + LIST_S
    listing = Listing()
    for entry in _below(base, "", deep, listing):
        if time.monotonic() > until:
            listing.complete = False
            break
        if wanted == "all" or entry.endswith("/") == (wanted == "dir"):
            listing.entries.append(entry)
    listing.entries.sort()
    return listing


def _of_git(base: Path) -> list[str] | None:
    """Return the files that git does not ignore; None outside of a repository."""
    asked = ("git", "-C", str(base), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        said = subprocess.run(asked, capture_output=True, timeout=LIST_S, check=False)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    if said.returncode:
        return None
    return sorted({name.decode("utf-8", "replace") for name in said.stdout.split(b"\0") if name})


def _below(folder: Path, prefix: str, deep: int, listing: Listing) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        listing.complete = False
        return
    for entry in entries:
        if entry.is_dir():
            yield f"{prefix}{entry.name}/"
            if deep > 1 and entry.name not in JUNK and not entry.is_symlink():  # links may lead in circles
                yield from _below(Path(entry.path), f"{prefix}{entry.name}/", deep - 1, listing)
        elif entry.is_file():
            yield prefix + entry.name


def chosen(params: Json) -> "_Chosen":
    """Return the filter for paths."""
    return _Chosen(_pattern(params.get("include", "**")), _pattern(params.get("exclude", "")))


@dataclass(frozen=True, slots=True)
class _Chosen:
    include: "re.Pattern[str] | None"
    exclude: "re.Pattern[str] | None"

    def __call__(self, path: str) -> bool:
        fits = self.include is None or self.include.fullmatch(path) is not None
        return fits and (self.exclude is None or self.exclude.fullmatch(path) is None)


def _pattern(glob: str) -> "re.Pattern[str] | None":
    """Return a glob's regex. Without a slash it matches the last part of a path, else it starts at any folder."""
    if not glob:
        return None
    anchored = glob.startswith("/")
    glob = glob.lstrip("/")
    if not anchored and not glob.startswith("**/"):
        glob = f"**/{glob}"
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    made = [parts.get(token) or _class(token) or re.escape(token) for token in _TOKENS.findall(glob)]
    return re.compile("".join(made), re.DOTALL)


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)


def _class(token: str) -> str:
    if len(token) < 3 or token[0] != "[":
        return ""
    negated = token[1] in "!^"
    inside = token[2 if negated else 1 : -1].replace("\\", r"\\").replace("]", r"\]").replace("[", r"\[")
    return f"[{'^' if negated else ''}{inside}]"
