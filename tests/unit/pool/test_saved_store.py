"""Files of saved slots, in a folder or at a URL: names, quotas, owners, and files that writers left unfinished."""

import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ConfigError, InternalError, InvalidRequest, PermissionDenied
from server.pool.saved.store import STALE_S, UNLOCKED_S, SavedFiles, SlotFiles, UrlFiles, check_name

BAD_NAMES = [
    *("", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "..\\x", "a\0b", "a\nb", "x..y", "x.", "x ", " x"),
    *("a:b", "a*", "a?", 'a"', "<a", "a>", "a|b", "x" * 256, "é" * 128, "\ud800", "a\u2215b", "a\uff0eb", "\x7f"),
    *(".saving-0", None, 1, ["a"], {"a": 1}, True),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_invalid_file_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_name(name)
    assert caught.value.param == "filename"


@given(st.text(max_size=300))
def test_accepted_file_names_stay_in_the_folder(name: str) -> None:
    try:
        check_name(name)
    except InvalidRequest:
        return
    assert Path("/folder", name).parent == Path("/folder")
    assert os.path.basename(name) == name
    assert os.path.normpath(name) == name


def read_file(files: SavedFiles, name: str) -> bytes:
    with files.opened(name) as (file, size):
        content = file.read()
    assert len(content) == size
    return content


def test_failed_save_keeps_the_older_file(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path)
    files.write("a", [b"old"])

    def failing_parts() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(InternalError, match="Unable to save slot: No space left on device"):
        files.write("a", failing_parts())
    assert read_file(files, "a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_concurrent_saves_do_not_exceed_the_quota(tmp_path: Path) -> None:
    all_started = threading.Barrier(4)

    def parts() -> Iterator[bytes]:
        all_started.wait(60)
        yield b"x" * 60

    def save(name: str) -> bool:
        try:
            SlotFiles(tmp_path, quota=150).write(name, parts())
        except PermissionDenied:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(save, "abcd")) == [False, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 120


def test_links_are_replaced_when_saving_and_refused_when_restoring(tmp_path: Path) -> None:
    folder, outside = tmp_path / "slots", tmp_path / "outside"
    folder.mkdir()
    outside.write_bytes(b"secret")
    (folder / "a").symlink_to(outside)
    with pytest.raises(InvalidRequest, match="is a link"), SlotFiles(folder).opened("a"):
        pytest.fail("the link was followed")
    SlotFiles(folder).write("a", [b"x"])
    assert outside.read_bytes() == b"secret"
    assert read_file(SlotFiles(folder), "a") == b"x"


def test_entries_that_are_no_regular_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    for name, expected in (*((name, "not a file") for name in ("folder", "pipe", "socket")), ("none", "no such file")):
        with pytest.raises(InvalidRequest, match=expected), SlotFiles(tmp_path).opened(name):
            pytest.fail(name)
    with pytest.raises(InvalidRequest, match="a folder has that name"):
        SlotFiles(tmp_path).write("folder", [b"x"])
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe", "socket"]


@pytest.mark.parametrize(("age_s", "remaining"), [(UNLOCKED_S, {"locked", "new"}), (STALE_S, {"new"})])
def test_next_save_removes_unfinished_files_of_killed_writers(
    tmp_path: Path, age_s: float, remaining: set[str]
) -> None:
    """An entry that cannot be removed, here a folder, is ignored."""
    (tmp_path / ".saving-folder").mkdir()
    for name in ("killed", "locked", "new", "folder"):
        if name != "folder":
            (tmp_path / f".saving-{name}").write_bytes(b"x" * 100)
        if name != "new":
            os.utime(tmp_path / f".saving-{name}", (time.time() - age_s,) * 2)
    with (tmp_path / ".saving-locked").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        SlotFiles(tmp_path, 20).write("slot", [b"x"])
    assert {path.name.removeprefix(".saving-") for path in tmp_path.iterdir()} == {*remaining, "folder", "slot"}


@pytest.fixture(params=["folder", "url"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SavedFiles:
    return SlotFiles(tmp_path, 20) if request.param == "folder" else UrlFiles(f"memory://slots{tmp_path}", 20)


def test_written_file_is_listed_read_replaced_and_removed(files: SavedFiles) -> None:
    assert files.listed() == []
    assert files.write("a", [b"one", memoryview(b"two")]) == 6
    assert read_file(files, "a") == b"onetwo"
    files.write("a", [b"new!"])
    (found,) = files.listed()
    assert (found.name, found.n_bytes) == ("a", 4)
    assert 0 <= found.age_s < 60
    files.used("a")
    files.remove("a")
    files.remove("a")
    assert files.listed() == []
    with pytest.raises(InvalidRequest, match="Unable to restore slot: there is no such file"):
        read_file(files, "a")


def test_save_above_the_quota_is_refused(files: SavedFiles) -> None:
    files.write("a", [bytes(15)])
    with pytest.raises(PermissionDenied, match="more than the 20 bytes"):
        files.write("b", [bytes(6)])
    assert [one.name for one in files.listed()] == ["a"]
    files.write("a", [bytes(20)])  # the replaced file does not count


def test_owners_have_separate_files(files: SavedFiles) -> None:
    ada, bert = files.of("ada"), files.of("bert")
    ada.write("a", [b"of ada"])
    bert.write("a", [b"of bert"])
    assert read_file(ada, "a") == b"of ada"
    assert read_file(bert, "a") == b"of bert"
    assert [one.name for one in files.listed()] == []
    assert files.of("") is files


def test_upload_of_a_large_state_needs_no_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    files, state = UrlFiles("memory://large"), memoryview(bytes(65 << 20))
    assert files.write("a", [state, b"end"]) == len(state) + 3
    assert [one.n_bytes for one in files.listed()] == [len(state) + 3]
    files.remove("a")


def test_error_for_an_unknown_url_scheme_hides_the_credentials() -> None:
    with pytest.raises(ConfigError, match=r"^nosuch://\*\*\*\*@bucket/a\?key=\*\*\*\*: ") as refused:
        UrlFiles("nosuch://ada:secret@bucket/a?key=secret")
    assert "secret" not in refused.value.message


def test_error_of_an_object_store_names_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    files = UrlFiles("memory://failing")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the network is down")

    monkeypatch.setattr(files._store, "open", fail)
    with pytest.raises(InternalError, match="memory://failing: the network is down"):
        files.write("a", [b"x"])
