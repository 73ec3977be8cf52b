"""The built-in tools on real files, without their sandboxed processes."""

import os
from pathlib import Path

import pytest

from server.errors import InvalidRequest, NotFound
from server.options.server import TOOLS
from server.web.tools.catalogue import EVERY, SHELL, PageTools, all_tools
from server.web.tools.work import WORK, answer


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def text_of(tool: str, **params: object) -> str:
    result = answer(tool, params)
    assert "error" not in result, result
    return str(result["plain_text_response"])


def error_of(tool: str, **params: object) -> str:
    return str(answer(tool, params)["error"])


def test_every_tool_has_an_implementation_and_an_option() -> None:
    assert {*all_tools()} == {*WORK, SHELL}
    assert {*TOOLS} == {EVERY, *WORK, SHELL}


def test_only_enabled_tools_are_offered_and_their_parameters_are_validated() -> None:
    tools = PageTools(["read_file"])
    assert [each["tool"] for each in tools.shown()] == ["read_file"]
    tools.check("read_file", {"path": "a"}, stream=False)
    with pytest.raises(NotFound):
        tools.check("write_file", {"path": "a", "content": ""}, stream=False)
    with pytest.raises(NotFound):
        PageTools(["all"]).check("read_file", {"path": "a"}, stream=True)
    for wrong in ({}, {"path": 1}, {"path": "a", "start_line": True}):
        with pytest.raises(InvalidRequest):
            tools.check("read_file", wrong, stream=False)
    with pytest.raises(InvalidRequest):
        PageTools(["all"]).check("edit_file", {"path": "a", "edits": [{"old_text": "a"}]}, stream=False)
    assert not PageTools()


def test_read_file_returns_lines_of_a_range(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"one\ntwo\r\nthree \xff\nfour")
    assert text_of("read_file", path="a.txt") == "one\ntwo\r\nthree \ufffd\nfour\n"
    assert text_of("read_file", path="a.txt", start_line=2, end_line=2, append_loc=True) == "2→two\r\n"
    assert text_of("read_file", path="a.txt", start_line=4, end_line=10**19) == "four\n"
    assert text_of("read_file", path="a.txt", start_line=10**19) == ""
    (folder / "long.txt").write_text("x" * 99 + "\n" * 20_000)
    assert "too large" in error_of("read_file", path="long.txt")
    assert text_of("read_file", path="long.txt", end_line=10**6).endswith("[output truncated]")
    assert answer("read_file", {"path": "a.txt", "resp_type": "base64"})["size_bytes"] == 21


@pytest.mark.parametrize("path", ["nothing", ".", "/dev/zero", "a\0b"])
def test_read_file_fails_for_paths_that_are_no_regular_file(path: str) -> None:
    assert error_of("read_file", path=path)


def test_files_are_created_and_edited(folder: Path) -> None:
    written = answer("write_file", {"path": "new/a.txt", "content": "line1\nline2\n“line3”  \nline4\xa0five\n"})
    assert written["result"] == "file written successfully"
    edits = [{"old_text": '"line3"', "new_text": "3"}, {"old_text": "line2", "new_text": "2"}]
    assert answer("edit_file", {"path": "new/a.txt", "edits": edits})["edits_applied"] == 2
    assert (folder / "new/a.txt").read_text() == "line1\n2\n3  \nline4\xa0five\n"
    other_space = [{"old_text": "line4 five\n", "new_text": "end"}]
    answer("edit_file", {"path": "new/a.txt", "edits": other_space})
    assert (folder / "new/a.txt").read_text() == "line1\n2\n3  \nend"


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ([], "non-empty"),
        ([("", "x")], "must not be empty"),
        ([("b", "x")], "unique"),
        ([("d", "x")], "could not find"),
        ([("a\nb", "x"), ("b\nb", "y")], "overlap"),
        ([("a", "a")], "no changes"),
    ],
)
def test_invalid_edits_change_nothing(folder: Path, edits: list[tuple[str, str]], error: str) -> None:
    (folder / "a.txt").write_text("a\nb\nb\n")
    changes = [{"old_text": old, "new_text": new} for old, new in edits]
    assert error in error_of("edit_file", path="a.txt", edits=changes)
    assert (folder / "a.txt").read_text() == "a\nb\nb\n"


@pytest.fixture
def tree(folder: Path) -> Path:
    for name in ("src/main.py", "src/deep/main.py", "build/made.py", "top.txt", "src/[x].txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the file\n{name}\nend\n")
    (folder / "src" / "circle").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("params", "paths"),
    [
        ({}, ["src/[x].txt", "src/deep/main.py", "src/main.py", "top.txt"]),
        ({"include": "*.py"}, ["src/deep/main.py", "src/main.py"]),
        ({"include": "src/*.py"}, ["src/main.py"]),
        ({"include": "/src/**/main.py", "exclude": "deep/*"}, ["src/main.py"]),
        ({"include": "[!a-s]*.t?t"}, ["src/[x].txt", "top.txt"]),
        ({"max_depth": 1}, ["top.txt"]),
        ({"type": "dir"}, ["build", "src", "src/circle", "src/deep"]),
    ],
)
def test_file_glob_search_filters_by_pattern_type_and_depth(
    tree: Path, params: dict[str, object], paths: list[str]
) -> None:
    result = answer("file_glob_search", {"path": str(tree), **params})
    assert [entry["path"] for entry in result["entries"]] == paths
    assert f"Total matches: {len(paths)}" in result["plain_text_response"]


def test_file_glob_search_counts_all_matches_and_rejects_invalid_parameters(tree: Path) -> None:
    assert "Total matches: 4" in text_of("file_glob_search", path=".", limit=1)
    assert "limit" in error_of("file_glob_search", path=".", limit=0)
    assert "type" in error_of("file_glob_search", path=".", type="x")
    assert "not a directory" in error_of("file_glob_search", path="top.txt")
    assert "character range" in error_of("file_glob_search", path=".", include="[z-a]")


def test_grep_search_returns_matching_lines(tree: Path) -> None:
    lines = text_of("grep_search", path=".", pattern=r"^src/\w+", return_line_numbers=True)
    assert lines.startswith("src/deep/main.py:2:src/deep/main.py\nsrc/main.py:2:src/main.py\n")
    lines = text_of("grep_search", path="top.txt", pattern="TOP.", literal=True, ignore_case=True, context_lines=1)
    assert lines.startswith("top.txt-1-the file\ntop.txt:2:top.txt\ntop.txt-3-end\n--\n")
    (tree / "many.txt").write_text("file\n" * 200)
    assert "100 matches limit" in text_of("grep_search", path=".", pattern="file")
    assert "invalid regex" in error_of("grep_search", path=".", pattern="(")
    assert "does not exist" in error_of("grep_search", path="nothing", pattern="a")


def test_get_info_returns_system_and_working_folder(folder: Path) -> None:
    assert answer("get_info", {}) == {"os": " ".join(os.uname()).strip(), "cwd": str(folder)} or os.name != "posix"
