"""The tool process: one JSON request on standard input, one JSON reply on standard output.

Each function takes a tool's parameters and returns its reply.
"""

import base64
import json
import os
import platform
import re
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

MAX_RESULTS = 100
MEMORY_BYTES = 1 << 30
Json = dict[str, Any]
MAX_BYTES = 16 * 1024
MAX_RAW_BYTES = 32 << 20
MAX_EDITED_BYTES = 64 << 20


def absolute_path(path: str) -> Path:
    """Return `path` as an absolute one. ``~`` is the home folder; others are relative to the current folder."""
    return Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(path))))


def _size(file: Path) -> int:
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):  # reads of devices and pipes may never end
        raise IsADirectoryError(0, "not a regular file", str(file))
    return found.st_size


def read_file(params: Json) -> Json:
    """Return lines of a text file, or the bytes of any file if the request sets ``resp_type``."""
    file = absolute_path(params["path"])
    size = _size(file)
    if params.get("resp_type") == "base64":
        if size > MAX_RAW_BYTES:
            return {"error": f"file too large ({size} bytes, max {MAX_RAW_BYTES})"}
        return {"base64": base64.b64encode(file.read_bytes()).decode(), "size_bytes": size}
    first, last = (min(params.get(*each), sys.maxsize) for each in (("start_line", 1), ("end_line", -1)))
    if size > MAX_BYTES and last == -1:
        error = f"file too large ({size} bytes, max {MAX_BYTES}). Use start_line/end_line to read a portion."
        return {"error": error}
    text, n = [], 0
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in islice(enumerate(lines, 1), max(first - 1, 0), None if last == -1 else max(last, 0)):
            shown = line.removesuffix("\n") + "\n"
            if params.get("append_loc"):
                shown = f"{number}→{shown}"
            n += len(shown.encode())
            if n > MAX_BYTES:
                text.append("[output truncated]")
                break
            text.append(shown)
    return {"plain_text_response": "".join(text)}


def write_file(params: Json) -> Json:
    file, content = absolute_path(params["path"]), params["content"].encode("utf-8", "surrogatepass")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return {"result": "file written successfully", "path": params["path"], "bytes": len(content)}


def edit_file(params: Json) -> Json:
    """Replace parts of a text file.

    If a part has no exact match, trailing spaces and the styles of quotes, dashes and spaces are ignored. Bytes
    outside of the edits stay unchanged.
    """
    path, edits = params["path"], params["edits"]
    file = absolute_path(path)
    if not edits:
        return {"error": '"edits" must be a non-empty array'}
    if _size(file) > MAX_EDITED_BYTES:
        return {"error": f"file too large (max {MAX_EDITED_BYTES} bytes)"}
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    normalized, at = _normalized(text)
    found: list[tuple[int, int, int]] = []  # start and end in the text, number of the edit
    for i, edit in enumerate(edits):
        old = edit["old_text"]
        if not old:
            return {"error": f"edits[{i}].old_text must not be empty"}
        needle, _ = _normalized(old)
        times = normalized.count(needle) if needle else text.count(old)
        if times > 1:
            return {"error": f"found {times} occurrences of edits[{i}].old_text in {path}, it must be unique"}
        if (start := text.find(old)) >= 0:
            end = start + len(old)
        elif needle and (near := normalized.find(needle)) >= 0:
            start, end = at[near], at[near + len(needle) - 1] + 1
        else:
            error = f"could not find edits[{i}].old_text in {path}, it must match the file's current content exactly"
            return {"error": error}
        found.append((start, end, i))
    found.sort()
    for (_, end, i), (start, _, j) in pairwise(found):
        if end > start:
            return {"error": f"edits[{i}] and edits[{j}] overlap in {path}; merge them into one edit"}
    parts, before = [], 0
    for start, end, i in found:
        parts += [text[before:start], edits[i]["new_text"]]
        before = end
    edited = "".join(parts) + text[before:]
    if edited == text:
        return {"error": "no changes made: the replacement(s) produced identical content"}
    file.write_bytes(edited.encode("utf-8", "surrogateescape"))
    return {"result": "file edited successfully", "path": path, "edits_applied": len(found)}


_SIMILAR = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛", "'"),
        **dict.fromkeys("“”„‟", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)


def _normalized(text: str) -> tuple[str, list[int]]:
    """Return `text` without trailing spaces and with similar characters unified, and the offset of each character."""
    offsets: list[int] = []
    start = 0
    for line in text.split("\n"):
        offsets += range(start, start + len(line.rstrip(" \t\r")))
        start += len(line) + 1
        offsets.append(start - 1)
    offsets.pop()  # the last line has no line break
    return "".join([text[i] for i in offsets]).translate(_SIMILAR), offsets


LIST_S = 15.0
MAX_FILE_BYTES = 16 << 20
JUNK = frozenset(
    (
        *(".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv", "dist", "build", "target"),
        *(".cache", ".idea", ".vscode"),
    )
)  # llama-server's list: listed but not searched


def file_glob_search(params: Json) -> Json:
    base, kind, limit = absolute_path(params["path"]), params.get("type", "file"), params.get("limit", MAX_RESULTS)
    if kind not in ("file", "dir", "all"):
        return {"error": f'invalid type: {kind} (expected "file", "dir" or "all")'}
    if limit < 1:
        return {"error": f"invalid limit: {limit} (expected 1 or more)"}
    if not base.is_dir():
        return {"error": f"path does not exist or is not a directory: {params['path']}"}
    entries, complete = list_paths(base, params.get("max_depth", 0), kind)
    matches = path_filter(params)
    found = [entry for entry in entries if matches(entry.rstrip("/"))]
    shown = found[: min(limit, MAX_RESULTS)]
    text = "".join(f"{entry}\n" for entry in shown) + f"\n---\nTotal matches: {len(found)}\n"
    if len(found) > len(shown):
        text += f"[{len(shown)} results limit reached ({len(found)} total matches). Refine the glob pattern to narrow "
        text += "the search.]\n"
    if not complete:
        text += "[results truncated: time budget or unreadable directory]\n"
    objects = [{"path": entry.rstrip("/"), "type": "dir" if entry.endswith("/") else "file"} for entry in shown]
    return {"plain_text_response": text, "entries": objects, "base": base.as_posix()}


def grep_search(params: Json) -> Json:
    """Find lines, in grep's output format."""
    source = re.escape(params["pattern"]) if params.get("literal") else params["pattern"]
    try:
        pattern = re.compile(source, re.IGNORECASE if params.get("ignore_case") else 0)
    except (re.error, RecursionError, OverflowError) as error:
        return {"error": f"invalid regex: {error}"}
    base = absolute_path(params["path"])
    if base.is_file():
        files = [(base, params["path"])]
    elif base.is_dir():
        matches = path_filter(params)
        files = [(base / entry, entry) for entry in list_paths(base, 0, "file")[0] if matches(entry)]
    else:
        return {"error": f"path does not exist: {params['path']}"}
    around = max(0, params.get("context_lines", 0))
    numbered = params.get("return_line_numbers", False) or around > 0
    text: list[str] = []
    total = 0
    for file, name in files:
        lines = read_lines(file)
        for i, line in enumerate(lines):
            if not pattern.search(line):
                continue
            if total == MAX_RESULTS:
                text.append(f"\n---\nTotal matches: {total}\n[{MAX_RESULTS} matches limit reached. Narrow the ")
                text.append("path/pattern/include to see more.]\n")
                return {"plain_text_response": "".join(text)}
            total += 1
            for j in range(max(0, i - around), min(len(lines), i + around + 1)):
                mark = ":" if j == i else "-"
                text.append(f"{name}{mark}{f'{j + 1}{mark}' if numbered else ''}{lines[j]}\n")
            if around:
                text.append("--\n")
    return {"plain_text_response": "".join(text) + f"\n---\nTotal matches: {total}\n"}


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file, none if it is unreadable or too large."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return []
        return file.read_text("utf-8", "replace").removesuffix("\n").split("\n")
    except OSError:
        return []


def list_paths(base: Path, max_depth: int, kind: str) -> tuple[list[str], bool]:
    """Return the relative paths of `kind` ("file", "dir" or "all"), and whether the list is complete.

    Paths of folders end with a slash. `max_depth` 0 = any depth.
    """
    deep = max_depth if max_depth > 0 else 10**6
    if kind == "file" and (known := _git_files(base)) is not None:
        return [entry for entry in known if entry.count("/") < deep and (base / entry).is_file()], True
    deadline = time.monotonic() + LIST_S
    entries: list[str] = []
    errors: list[OSError] = []
    for folder, folders, names in os.walk(base, onerror=errors.append):  # does not follow links
        if time.monotonic() > deadline:
            errors.append(TimeoutError())
            break
        prefix = "" if folder == str(base) else os.path.relpath(folder, base) + "/"
        if kind != "file":
            entries += [f"{prefix}{name}/" for name in folders]
        if kind != "dir":
            entries += [prefix + name for name in names if os.path.isfile(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in JUNK and prefix.count("/") + 1 < deep]
    return sorted(entries), not errors


def _git_files(base: Path) -> list[str] | None:
    """Return the files that git does not ignore; None outside of a repository."""
    command = ("git", "-C", str(base), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIST_S, check=False)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return sorted({name.decode("utf-8", "replace") for name in done.stdout.split(b"\0") if name})


def path_filter(params: Json) -> Callable[[str], bool]:
    """Return the filter for paths by ``include`` and ``exclude``."""
    include, exclude = _pattern(params.get("include", "**")), _pattern(params.get("exclude", ""))
    return lambda path: bool((not include or include.fullmatch(path)) and not (exclude and exclude.fullmatch(path)))


def _pattern(glob: str) -> "re.Pattern[str] | None":
    """Return a glob's regex. It matches from any folder on; a glob that starts with a slash matches from the base."""
    if not glob:
        return None
    anchored = glob.startswith("/")
    glob = glob.lstrip("/")
    if not anchored and not glob.startswith("**/"):
        glob = f"**/{glob}"
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = [parts.get(token) or _class(token) or re.escape(token) for token in _TOKENS.findall(glob)]
    return re.compile("".join(regex), re.DOTALL)


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)


def _class(token: str) -> str:
    if len(token) < 3 or token[0] != "[":
        return ""
    negated = token[1] in "!^"
    inside = token[2 if negated else 1 : -1].replace("\\", r"\\").replace("]", r"\]").replace("[", r"\[")
    return f"[{'^' if negated else ''}{inside}]"


def get_info(_: Json) -> Json:
    return {"os": " ".join(platform.uname()).strip(), "cwd": os.getcwd()}


WORK: dict[str, Callable[[Json], Json]] = {
    "read_file": read_file,
    "write_file": write_file,
    "edit_file": edit_file,
    "file_glob_search": file_glob_search,
    "grep_search": grep_search,
    "get_info": get_info,
}


def answer(tool: str, params: Json) -> Json:
    """Return the reply of a tool, or an ``error``, e.g. for an unreadable file."""
    try:
        return WORK[tool](params)
    except OSError as error:
        return {"error": f"{error.strerror or error}: {error.filename or params.get('path', '')}"}
    except (ValueError, re.error) as error:  # path with a NUL byte; pattern such as [z-a]
        return {"error": str(error)}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.load(sys.stdin)
    json.dump(answer(request["tool"], request["params"]), sys.stdout)
