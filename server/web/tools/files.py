"""Files read, written and edited by a tool. Each function takes a tool's parameters and gives its answer."""

import base64
import os
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

MOST_BYTES = 16 * 1024
MOST_RAW_BYTES = 32 << 20
MOST_EDITED_BYTES = 64 << 20
Json = dict[str, Any]


def place_of(path: str) -> Path:
    """Return the absolute path. ``~`` is the home folder; other paths are relative to the current folder."""
    return Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(path))))


def _size(place: Path) -> int:
    found = place.stat()
    if not stat.S_ISREG(found.st_mode):  # devices and pipes may never end
        raise IsADirectoryError(0, "not a regular file", str(place))
    return found.st_size


def read_file(params: Json) -> Json:
    """Return lines of a text file, or the bytes of any file if the request sets ``resp_type``."""
    place = place_of(params["path"])
    size = _size(place)
    if params.get("resp_type") == "base64":
        if size > MOST_RAW_BYTES:
            return {"error": f"file too large ({size} bytes, max {MOST_RAW_BYTES})"}
        return {"base64": base64.b64encode(place.read_bytes()).decode(), "size_bytes": size}
    first, last = params.get("start_line", 1), params.get("end_line", -1)
    if size > MOST_BYTES and last == -1:
        error = f"file too large ({size} bytes, max {MOST_BYTES}). Use start_line/end_line to read a portion."
        return {"error": error}
    text, n = [], 0
    with place.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if number < first:
                continue
            if last != -1 and number > last:
                break
            shown = line.removesuffix("\n") + "\n"
            if params.get("append_loc"):
                shown = f"{number}→{shown}"
            n += len(shown.encode())
            if n > MOST_BYTES:
                text.append("[output truncated]")
                break
            text.append(shown)
    return {"plain_text_response": "".join(text)}


def write_file(params: Json) -> Json:
    """Write a file with this content, and create its folders."""
    place, content = place_of(params["path"]), params["content"].encode("utf-8", "surrogatepass")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return {"result": "file written successfully", "path": params["path"], "bytes": len(content)}


@dataclass(frozen=True, slots=True)
class _Found:
    start: int
    end: int
    number: int  # of the edit
    text: str


def edit_file(params: Json) -> Json:
    """Replace parts of a text file.

    If a part has no exact match, trailing spaces and the styles of quotes, dashes and spaces are ignored. Bytes
    outside of the edits stay unchanged.
    """
    path, edits = params["path"], params["edits"]
    place = place_of(path)
    if not edits:
        return {"error": '"edits" must be a non-empty array'}
    if _size(place) > MOST_EDITED_BYTES:
        return {"error": f"file too large (max {MOST_EDITED_BYTES} bytes)"}
    text = place.read_bytes().decode("utf-8", "surrogateescape")
    plain, at = _plain(text)
    found = []
    for i, edit in enumerate(edits):
        old = edit["old_text"]
        if not old:
            return {"error": f"edits[{i}].old_text must not be empty"}
        wanted, _ = _plain(old)
        times = plain.count(wanted) if wanted else text.count(old)
        if times > 1:
            return {"error": f"found {times} occurrences of edits[{i}].old_text in {path}, it must be unique"}
        if (start := text.find(old)) >= 0:
            end = start + len(old)
        elif wanted and (near := plain.find(wanted)) >= 0:
            start, end = at[near], at[near + len(wanted) - 1] + 1
        else:
            error = f"could not find edits[{i}].old_text in {path}, it must match the file's current content exactly"
            return {"error": error}
        found.append(_Found(start, end, i, edit["new_text"]))
    found.sort(key=lambda one: one.start)
    for one, other in pairwise(found):
        if one.end > other.start:
            error = f"edits[{one.number}] and edits[{other.number}] overlap in {path}; merge them into one edit"
            return {"error": error}
    parts, end = [], 0
    for one in found:
        parts += [text[end : one.start], one.text]
        end = one.end
    edited = "".join(parts) + text[end:]
    if edited == text:
        return {"error": "no changes made: the replacement(s) produced identical content"}
    place.write_bytes(edited.encode("utf-8", "surrogateescape"))
    return {"result": "file edited successfully", "path": path, "edits_applied": len(found)}


_ALIKE = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛", "'"),
        **dict.fromkeys("“”„‟", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)


def _plain(text: str) -> tuple[str, list[int]]:
    """Return `text` without ignored differences, and the offset in `text` of each of its characters."""
    kept: list[int] = []
    start = 0
    for line in text.split("\n"):
        kept += range(start, start + len(line.rstrip(" \t\r")))
        start += len(line) + 1
        kept.append(start - 1)
    kept.pop()  # the last line has no line break
    return "".join([text[i] for i in kept]).translate(_ALIKE), kept
