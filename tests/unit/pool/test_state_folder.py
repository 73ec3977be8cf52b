"""Prompt states in a real folder: what is written comes back, and nothing that is damaged or of another model."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.engine.cache.prefix_cache import CacheEntry
from server.engine.lora import Adapter, AdapterSet
from server.engine.params import EngineParams
from server.errors import InternalError, InvalidRequest
from server.pool.model import LoadedModel
from server.pool.protocols import ModelInfo
from server.pool.saved.format import DATA_PREFIX
from server.pool.saved.state_cache import StateFolder, remove_states
from server.pool.saved.store import UNLOCKED_S
from server.pool.spec import LoadParams, ModelSpec

STATE = DATA_PREFIX + bytes(4) + b"state of the library"
SAVED = CacheEntry([7, 8, 9], checkpoints={2: b"two"}, state=STATE)
LORA = Adapter(0, "lora.gguf", 0.5)


def model(
    n_ctx: int = 256,
    *,
    model_id: str = "m",
    adapters: tuple[Adapter, ...] = (),
    n_slots: int = 4,
    unified: bool = False,
) -> LoadedModel:
    """As much of a loaded model as its states depend on."""
    info = ModelInfo(fingerprint="weights")
    adapters = tuple(replace(a, fingerprint=f"content of {a.path}") for a in adapters)
    engine = SimpleNamespace(n_ctx_seq=n_ctx, n_slots_each=n_slots, adapters=adapters)
    spec = ModelSpec(model_id, Path("m.gguf"), native=LoadParams(kv_unified=unified))
    vocab = SimpleNamespace(n_tokens=100)
    return cast(LoadedModel, SimpleNamespace(spec=spec, info=info, engine=engine, vocab=vocab, media=None))


def opened(root: Path, of: LoadedModel | None = None, limit: int = 1 << 30) -> tuple[StateFolder, list[Any]]:
    folder = StateFolder(of or model(), root, limit)
    return folder, folder.index()


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def save(root: Path, saved: CacheEntry = SAVED, of: LoadedModel | None = None) -> int:
    folder, _ = opened(root, of)
    return folder.write("a.state", saved, ())


def test_lora_sets_come_back_under_the_ids_of_today(tmp_path: Path) -> None:
    other = Adapter(0, "other.gguf", 0.5)
    save(tmp_path, replace(SAVED, adapter_set=AdapterSet(((0, 0.5),), 1)), model(adapters=(LORA,)))
    _, (entry,) = opened(tmp_path, model(adapters=(other, replace(LORA, id=1))))
    assert entry.adapter_set == AdapterSet(((1, 0.5),), 1)
    _, entries = opened(tmp_path, model(adapters=(other,)))
    assert entries == []
    assert files(tmp_path) == ["a.state"]  # they may be loaded again


def test_states_outlive_another_length_of_the_context(tmp_path: Path) -> None:
    save(tmp_path)
    folder, (entry,) = opened(tmp_path, model(n_ctx=512))
    assert entry.tokens == [7, 8, 9]
    assert folder.read("a.state").state == SAVED.state
    _, entries = opened(tmp_path, model(n_ctx=2))
    assert entries == []  # no slot has room for it
    assert files(tmp_path) == ["a.state"]


def shared(root: Path | str, secret: bytes = b"", *, is_shared: bool = True) -> StateFolder:
    folder = StateFolder(model(), root, 1 << 30, shared=is_shared, secret=secret)
    folder.index()
    return folder


@pytest.fixture(params=["folder", "address"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path if request.param == "folder" else f"memory://states{tmp_path}"


@pytest.mark.parametrize("is_shared", [True, False])
def test_processes_in_one_place_find_each_others_states(place: Path | str, is_shared: bool) -> None:
    ours, theirs = shared(place, is_shared=is_shared), shared(place, is_shared=is_shared)
    ours.write("a.state", SAVED, ())
    assert ours.others() == ([], set())  # its own are known
    (entry,), gone = theirs.others()
    assert (entry.tokens, entry.name, gone) == ([7, 8, 9], "a.state", set())
    assert theirs.read("a.state").state == SAVED.state
    theirs.used("a.state")
    assert theirs.others() == ([], set())
    ours.remove("a.state")
    assert theirs.others() == ([], {"a.state"})
    with pytest.raises(InvalidRequest, match="no such file"):
        theirs.read("a.state")


def test_what_another_secret_signed_is_left_and_not_used(place: Path | str) -> None:
    ours, theirs = shared(place, b"one secret"), shared(place, b"another")
    ours.write("a.state", SAVED, ())
    assert theirs.others() == ([], set())
    with pytest.raises(InvalidRequest, match="was not signed with this server's secret"):
        theirs.read("a.state")
    assert ours.read("a.state").state == SAVED.state


def test_signed_states_outlive_a_process_without_the_secret(tmp_path: Path) -> None:
    signed = shared(tmp_path, b"one secret")
    signed.write("a.state", SAVED, ())
    plain = shared(tmp_path, is_shared=False)
    plain.write("b.state", SAVED, ())
    assert (plain.others(), signed.others()) == (([], set()), ([], set()))
    assert files(tmp_path) == ["a.state", "b.state"]
    assert (signed.read("a.state").state, plain.read("b.state").state) == (SAVED.state, SAVED.state)


def test_states_of_all_settings_are_removed_and_no_other_files(place: Path | str) -> None:
    shared(place, b"one secret").write("a.state", SAVED, ())
    shared(place).write("b.state", SAVED, ())
    other = StateFolder(model(model_id="other"), place, 1 << 30)
    other.index()
    other.write("c.state", SAVED, ())
    engine = EngineParams(cache_disk=1, cache_disk_path=place, cache_disk_secret=b"one secret")
    spec = replace(model().spec, engine=engine)
    assert remove_states(spec) == len(SAVED.tokens)  # the other file cannot be read
    assert remove_states(spec) == 0
    assert (shared(place).others(), shared(place, b"one secret").others()) == (([], set()), ([], set()))
    assert other.read("c.state").state == SAVED.state


def test_the_length_counts_where_longer_contexts_rotate_otherwise(tmp_path: Path) -> None:
    def of(n_ctx: int) -> LoadedModel:
        found = model(n_ctx)
        found.info.metadata["phi3.rope.scaling.original_context_length"] = "4096"
        return found

    save(tmp_path, of=of(4096))
    assert len(opened(tmp_path, of(1024))[1]) == 1
    assert opened(tmp_path, of(8192))[1] == []


def test_states_of_an_older_llamapool_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        for module in ("format", "state_cache"):
            older.setattr(f"server.pool.saved.{module}.FORMAT", 0)
        save(tmp_path)
    newer, entries = opened(tmp_path)
    assert entries == []
    (old,) = tmp_path.rglob("a.state")
    (own,) = (folder for folder in old.parent.parent.iterdir() if folder != old.parent)
    (own / "a.state").write_bytes(old.read_bytes())
    with pytest.raises(InvalidRequest, match="it has the format 0, this Llamapool reads 1"):
        newer.read("a.state")


def test_what_nobody_uses_goes_when_files_become_too_many(tmp_path: Path) -> None:
    other = model()
    other.spec = replace(other.spec, native=LoadParams(cache_type_k="q8_0"))
    n_bytes = save(tmp_path, of=other)
    (old,) = tmp_path.rglob("a.state")
    os.utime(old, (time.time() - 1000,) * 2)
    folder, _ = opened(tmp_path, limit=2 * n_bytes)
    folder.write("b.state", SAVED, ())
    assert files(tmp_path) == ["a.state", "b.state"]
    folder.write("c.state", SAVED, {"b.state"})
    assert files(tmp_path) == ["b.state", "c.state"]


def test_equal_states_of_other_processes_count(tmp_path: Path) -> None:
    n_bytes = save(tmp_path)
    (path,) = tmp_path.rglob("a.state")
    for age_s in range(3):
        other = path.with_name(f"{age_s}.state")
        other.write_bytes(path.read_bytes())
        os.utime(other, (time.time() - age_s - 1,) * 2)
    folder = StateFolder(model(), tmp_path, 3 * n_bytes, shared=True)
    folder.others()
    folder.write("b.state", SAVED, {"a.state"})
    assert files(tmp_path) == ["0.state", "a.state", "b.state"]
    folder.write("c.state", SAVED, {"a.state", "b.state"})
    assert files(tmp_path) == ["a.state", "b.state", "c.state"]


def test_what_was_not_written_to_its_end_is_removed_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    save(tmp_path)
    (path,) = tmp_path.rglob("a.state")
    (path.parent / "notes.txt").write_bytes(b"mine")

    def leave_unfinished() -> None:
        for name, age_s in ((".saving-old", UNLOCKED_S), (".saving-new", 0.0)):
            (path.parent / name).write_bytes(b"half")
            os.utime(path.parent / name, (time.time() - age_s,) * 2)

    leave_unfinished()
    folder, entries = opened(tmp_path)
    assert len(entries) == 1
    assert files(tmp_path) == [".saving-new", "a.state", "notes.txt"]
    leave_unfinished()
    folder.write("b.state", SAVED, {"a.state"})
    assert files(tmp_path) == [".saving-new", "a.state", "b.state", "notes.txt"]


def test_others_can_not_read_it(tmp_path: Path) -> None:
    save(tmp_path / "states")
    (folder,) = (tmp_path / "states").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_folder_that_cannot_be_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InternalError, match="Not a directory"):
        opened(tmp_path / "file")
