"""Saved files at an address, here of fsspec's memory: as those of a folder."""

from pathlib import Path

import pytest

from server.errors import ConfigError, InternalError, InvalidRequest, PermissionDenied
from server.pool.saved.store import SavedFiles, SlotFiles, UrlFiles


@pytest.fixture(params=["folder", "address"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SavedFiles:
    return SlotFiles(tmp_path, 20) if request.param == "folder" else UrlFiles(f"memory://slots{tmp_path}", 20)


def content(files: SavedFiles, name: str) -> bytes:
    with files.opened(name) as (file, size):
        read = file.read()
    assert len(read) == size
    return read


def test_what_is_written_is_listed_and_read(files: SavedFiles) -> None:
    assert files.listed() == []
    assert files.write("a", [b"one", memoryview(b"two")]) == 6
    assert content(files, "a") == b"onetwo"
    files.write("a", [b"anew"])
    (found,) = files.listed()
    assert (found.name, found.n_bytes) == ("a", 4)
    assert 0 <= found.age_s < 60
    files.used("a")
    files.remove("a")
    files.remove("a")
    assert files.listed() == []
    with pytest.raises(InvalidRequest, match="Unable to restore slot: there is no such file"):
        content(files, "a")


def test_no_more_than_the_quota(files: SavedFiles) -> None:
    files.write("a", [bytes(15)])
    with pytest.raises(PermissionDenied, match="more than the 20 bytes"):
        files.write("b", [bytes(6)])
    assert [one.name for one in files.listed()] == ["a"]
    files.write("a", [bytes(20)])  # in its place


def test_each_owner_has_its_own(files: SavedFiles) -> None:
    ada, bert = files.of("ada"), files.of("bert")
    ada.write("a", [b"hers"])
    bert.write("a", [b"his"])
    assert content(ada, "a") == b"hers"
    assert content(bert, "a") == b"his"
    assert [one.name for one in files.listed()] == []
    assert files.of("") is files


def test_an_address_that_nobody_speaks() -> None:
    with pytest.raises(ConfigError, match=r"^nosuch://\*\*\*\*@bucket/a\?key=\*\*\*\*: ") as refused:
        UrlFiles("nosuch://ada:secret@bucket/a?key=secret")
    assert "secret" not in refused.value.message


def test_a_store_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    files = UrlFiles("memory://failing")

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the network is down")

    monkeypatch.setattr(files._store, "open", fails)
    with pytest.raises(InternalError, match="memory://failing: the network is down"):
        files.write("a", [b"x"])
