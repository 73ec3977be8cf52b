"""Prompt states that a model caches in a folder or at a URL: which process reads, keeps or removes which file."""

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


def model(n_ctx: int = 256, *, model_id: str = "m", adapters: tuple[Adapter, ...] = ()) -> LoadedModel:
    """Return the parts of a loaded model that its states depend on."""
    info = ModelInfo(fingerprint="weights")
    adapters = tuple(replace(a, fingerprint=f"content of {a.path}") for a in adapters)
    engine = SimpleNamespace(n_ctx_seq=n_ctx, n_slots_each=4, adapters=adapters)
    spec = ModelSpec(model_id, Path("m.gguf"))
    vocab = SimpleNamespace(n_tokens=100)
    return cast(LoadedModel, SimpleNamespace(spec=spec, info=info, engine=engine, vocab=vocab, media=None))


def open_folder(root: Path, loaded: LoadedModel | None = None, limit: int = 1 << 30) -> tuple[StateFolder, list[Any]]:
    folder = StateFolder(loaded or model(), root, limit)
    return folder, folder.index()


def names_in(root: Path) -> list[str]:
    """Return the names of all files below `root`."""
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def save(root: Path, saved: CacheEntry = SAVED, loaded: LoadedModel | None = None) -> int:
    """Write a.state for a loaded model; return its bytes."""
    folder, _ = open_folder(root, loaded)
    return folder.write("a.state", saved, ())


def test_adapters_of_a_state_get_their_current_ids(tmp_path: Path) -> None:
    other = Adapter(0, "other.gguf", 0.5)
    save(tmp_path, replace(SAVED, adapter_set=AdapterSet(((0, 0.5),), 1)), model(adapters=(LORA,)))
    _, (entry,) = open_folder(tmp_path, model(adapters=(other, replace(LORA, id=1))))
    assert entry.adapter_set == AdapterSet(((1, 0.5),), 1)
    _, entries = open_folder(tmp_path, model(adapters=(other,)))
    assert entries == []
    assert names_in(tmp_path) == ["a.state"]  # the adapter may be loaded again


def test_states_are_read_after_a_change_of_the_context_length(tmp_path: Path) -> None:
    save(tmp_path)
    folder, (entry,) = open_folder(tmp_path, model(n_ctx=512))
    assert entry.tokens == [7, 8, 9]
    assert folder.read("a.state").state == SAVED.state
    _, entries = open_folder(tmp_path, model(n_ctx=2))
    assert entries == []  # longer than a slot
    assert names_in(tmp_path) == ["a.state"]


def shared_folder(root: Path | str, secret: bytes = b"", *, is_shared: bool = True) -> StateFolder:
    folder = StateFolder(model(), root, 1 << 30, shared=is_shared, secret=secret)
    folder.index()
    return folder


@pytest.fixture(params=["folder", "url"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path if request.param == "folder" else f"memory://states{tmp_path}"


@pytest.mark.parametrize("is_shared", [True, False])
def test_processes_with_the_same_folder_find_each_others_states(root: Path | str, is_shared: bool) -> None:
    one, other = shared_folder(root, is_shared=is_shared), shared_folder(root, is_shared=is_shared)
    one.write("a.state", SAVED, ())
    assert one.others() == ([], set())
    (entry,), removed = other.others()
    assert (entry.tokens, entry.name, removed) == ([7, 8, 9], "a.state", set())
    assert other.read("a.state").state == SAVED.state
    other.used("a.state")
    assert other.others() == ([], set())
    one.remove("a.state")
    assert other.others() == ([], {"a.state"})
    with pytest.raises(InvalidRequest, match="no such file"):
        other.read("a.state")


def test_state_signed_with_another_secret_is_kept_and_not_read(root: Path | str) -> None:
    one, other = shared_folder(root, b"one secret"), shared_folder(root, b"another")
    one.write("a.state", SAVED, ())
    assert other.others() == ([], set())
    with pytest.raises(InvalidRequest, match="was not signed with this server's secret"):
        other.read("a.state")
    assert one.read("a.state").state == SAVED.state


def test_process_without_the_secret_keeps_signed_states(tmp_path: Path) -> None:
    signed = shared_folder(tmp_path, b"one secret")
    signed.write("a.state", SAVED, ())
    plain = shared_folder(tmp_path, is_shared=False)
    plain.write("b.state", SAVED, ())
    assert (plain.others(), signed.others()) == (([], set()), ([], set()))
    assert names_in(tmp_path) == ["a.state", "b.state"]
    assert (signed.read("a.state").state, plain.read("b.state").state) == (SAVED.state, SAVED.state)


def test_remove_states_removes_those_of_all_settings_and_of_no_other_model(root: Path | str) -> None:
    shared_folder(root, b"one secret").write("a.state", SAVED, ())
    shared_folder(root).write("b.state", SAVED, ())
    other = StateFolder(model(model_id="other"), root, 1 << 30)
    other.index()
    other.write("c.state", SAVED, ())
    engine = EngineParams(cache_disk=1, cache_disk_path=root, cache_disk_secret=b"one secret")
    spec = replace(model().spec, engine=engine)
    assert remove_states(spec) == len(SAVED.tokens)  # tokens of the unsigned file are not counted
    assert remove_states(spec) == 0
    assert (shared_folder(root).others(), shared_folder(root, b"one secret").others()) == (([], set()), ([], set()))
    assert other.read("c.state").state == SAVED.state


def test_context_beyond_the_original_length_reads_no_states_of_a_shorter_one(tmp_path: Path) -> None:
    """Phi-3 uses other RoPE factors above its original context length."""

    def phi3(n_ctx: int) -> LoadedModel:
        loaded = model(n_ctx)
        loaded.info.metadata["phi3.rope.scaling.original_context_length"] = "4096"
        return loaded

    save(tmp_path, loaded=phi3(4096))
    assert len(open_folder(tmp_path, phi3(1024))[1]) == 1
    assert open_folder(tmp_path, phi3(8192))[1] == []


def test_states_of_an_older_format_are_kept_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        for module in ("format", "state_cache"):
            older.setattr(f"server.pool.saved.{module}.FORMAT", 0)
        save(tmp_path)
    newer, entries = open_folder(tmp_path)
    assert entries == []
    (old,) = tmp_path.rglob("a.state")
    (own,) = (folder for folder in old.parent.parent.iterdir() if folder != old.parent)
    (own / "a.state").write_bytes(old.read_bytes())
    with pytest.raises(InvalidRequest, match="it has the format 0, this Llamapool reads 1"):
        newer.read("a.state")


def test_oldest_unused_states_are_removed_above_the_limit(tmp_path: Path) -> None:
    other = model()
    other.spec = replace(other.spec, native=LoadParams(cache_type_k="q8_0"))
    n_bytes = save(tmp_path, loaded=other)
    (old,) = tmp_path.rglob("a.state")
    os.utime(old, (time.time() - 1000,) * 2)
    folder, _ = open_folder(tmp_path, limit=2 * n_bytes)
    folder.write("b.state", SAVED, ())
    assert names_in(tmp_path) == ["a.state", "b.state"]
    folder.write("c.state", SAVED, {"b.state"})
    assert names_in(tmp_path) == ["b.state", "c.state"]


def test_equal_states_of_other_processes_count_towards_the_limit(tmp_path: Path) -> None:
    n_bytes = save(tmp_path)
    (path,) = tmp_path.rglob("a.state")
    for age_s in range(3):
        other = path.with_name(f"{age_s}.state")
        other.write_bytes(path.read_bytes())
        os.utime(other, (time.time() - age_s - 1,) * 2)
    folder = StateFolder(model(), tmp_path, 3 * n_bytes, shared=True)
    folder.others()
    folder.write("b.state", SAVED, {"a.state"})
    assert names_in(tmp_path) == ["0.state", "a.state", "b.state"]
    folder.write("c.state", SAVED, {"a.state", "b.state"})
    assert names_in(tmp_path) == ["a.state", "b.state", "c.state"]


def test_unfinished_files_are_removed_and_other_files_are_kept(tmp_path: Path) -> None:
    save(tmp_path)
    (path,) = tmp_path.rglob("a.state")
    (path.parent / "notes.txt").write_bytes(b"notes")

    def write_unfinished() -> None:
        for name, age_s in ((".saving-old", UNLOCKED_S), (".saving-new", 0.0)):
            (path.parent / name).write_bytes(b"half")
            os.utime(path.parent / name, (time.time() - age_s,) * 2)

    write_unfinished()
    folder, entries = open_folder(tmp_path)
    assert len(entries) == 1
    assert names_in(tmp_path) == [".saving-new", "a.state", "notes.txt"]
    write_unfinished()
    folder.write("b.state", SAVED, {"a.state"})
    assert names_in(tmp_path) == [".saving-new", "a.state", "b.state", "notes.txt"]


def test_other_users_cannot_read_states(tmp_path: Path) -> None:
    save(tmp_path / "states")
    (folder,) = (tmp_path / "states").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_error_names_the_reason_why_the_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InternalError, match="Not a directory"):
        open_folder(tmp_path / "file")
