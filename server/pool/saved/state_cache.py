"""The disk cache of a model (``cache_disk``): prompt states (`StateFolder`), embeddings of media (`EmbeddingFolder`).

The folder of a model id contains one folder per `slots.origin_of_cells`, so that states of other settings, adapters or
versions are kept. Any number of processes may use such a folder: each lists it periodically for states of the others.
The oldest files are removed when all files of the model exceed the limit. At a URL, rules of the store must remove
files of other settings. In a shared folder (a URL is always shared), states are written early, and unusable files are
kept.

Keys of embeddings include the projector and its settings, so any process may read and write them. All methods block.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from server.engine.cache.prefix_cache import CacheEntry
from server.errors import InternalError, InvalidRequest, LlamapoolError, without_credentials
from server.pool.model import LoadedModel
from server.pool.saved.format import FORMAT, encode, open_saved
from server.pool.saved.slots import adapter_set_of, describe, matching_adapters, origin_of_cells, projector_of
from server.pool.saved.store import Listed, SavedFiles, SlotFiles, UrlFiles
from server.pool.spec import ModelSpec

log = logging.getLogger(__name__)

SUFFIX = ".state"
FOLDER_INTERVAL_S = 1.0  # between two listings of a shared folder for states of other processes
SLOW_INTERVAL_S = 10.0  # of a URL, where each listing is a request, and of a folder that is not shared
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(model_id: str) -> str:
    """Return the name of a folder for a model id, which may contain any characters."""
    return f"{_NOT_PLAIN.sub('_', model_id)[:64].strip('.')}-{_digest(model_id)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _files_below(root: Path | str, *names: str) -> SavedFiles:
    return UrlFiles("/".join((root.rstrip("/"), *names))) if isinstance(root, str) else SlotFiles(root.joinpath(*names))


def _create(*folders: Path) -> None:
    """Create folders that only this user can read, since cached states reveal conversations. Remove unfinished files of
    killed processes in the first. Raises `InternalError`.
    """
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        SlotFiles(folders[0]).remove_stale()
    except OSError as error:
        raise InternalError(f"{folders[-1]}: {error.strerror or error}") from error


def remove_states(spec: ModelSpec) -> int:
    """Remove all states of a model from its disk cache, also of other settings. Return their tokens, without those of
    unreadable files. Raises `InternalError`.
    """
    root, secret = spec.engine.disk_place, spec.engine.cache_disk_secret
    if root is None:
        return 0
    n_tokens, folders = 0, _files_below(root, folder_name(spec.id))
    for name in folders.folders():
        files = folders.of(name)
        for one in files.listed():
            if one.name.endswith(SUFFIX):
                with contextlib.suppress(InvalidRequest), files.opened(one.name) as (file, size):
                    n_tokens += open_saved(file, size, secret).description.n_tokens
                files.remove(one.name)
    return n_tokens


class StateFolder:
    """`server.engine.cache.disk_cache.StateFiles` for one loaded model."""

    def __init__(
        self, model: LoadedModel, root: Path | str, limit: int, *, shared: bool = False, secret: bytes = b""
    ) -> None:
        """`limit`: bytes of all files of the model; `secret`: the key that signs them. A URL is always shared."""
        self._model = model
        self._limit = limit
        self._secret = secret
        self._origin = origin_of_cells(model, importlib.metadata.version("llama_cpp_python"))
        # A process without the secret would remove signed files as damaged.
        signed = ["signed"] if secret else []
        own = folder_name(model.spec.id), _digest(json.dumps([FORMAT, self._origin, *signed]))
        self._files = _files_below(root, *own)
        self._path = None if isinstance(root, str) else root.joinpath(*own)
        self._where = without_credentials(root) if isinstance(root, str) else str(self._path)
        self.shared = shared or self._path is None
        self._listed_names: set[str] = set()  # in the last listing, or written since

    @property
    def follow_s(self) -> float:
        """Seconds between two calls of `others`."""
        return FOLDER_INTERVAL_S if self.shared and self._path is not None else SLOW_INTERVAL_S

    def index(self) -> list[CacheEntry]:
        """Return the states that fit this model; remove damaged files. Raises `InternalError`."""
        if self._path is not None:
            _create(self._path.parent, self._path)
        self._listed_names = set()
        return self.others()[0]

    def others(self) -> tuple[list[CacheEntry], set[str]]:
        """Return states of other processes since the last call, and names of removed ones. Raises `InternalError`."""
        listed = {one.name: one for one in self._files.listed() if one.name.endswith(SUFFIX)}
        removed, added = self._listed_names - listed.keys(), sorted(listed.keys() - self._listed_names)
        self._listed_names = set(listed)
        return [entry for name in added if (entry := self._entry(listed[name])) is not None], removed

    def _entry(self, listed: Listed) -> CacheEntry | None:
        name = listed.name
        try:
            saved, size = self._read(name, states=False)
        except LlamapoolError as error:
            log.warning("%s/%s is %s: %s", self._where, name, "kept" if self.shared else "removed", error)
            if not self.shared:  # otherwise another process may be able to use it
                self.remove(name)
            return None
        if saved is not None:
            saved.name, saved.size, saved.last_used = name, size, -listed.age_s
        return saved

    def _read(self, name: str, *, states: bool = True) -> tuple[CacheEntry | None, int]:
        """Return a file's content and its bytes. The content is None if it cannot be used now: it belongs to another
        model or other settings, its adapters or its projector are not loaded, or it is longer than a slot.
        """
        with self._files.opened(name) as (file, size):
            saved = open_saved(file, size, self._secret)
            described = saved.description
            adapters = matching_adapters(self._model, described.lora)
            fits = described.origin == self._origin and described.media in ("", projector_of(self._model))
            if adapters is None or not fits or described.n_tokens > self._model.engine.n_ctx_seq:
                return None, size
            return saved.read(self._model.vocab.n_tokens, adapter_set_of(described, adapters), states=states), size

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        """Write a file completely or not at all. Return its bytes. Raises `InternalError` with the system's reason."""
        description = replace(describe(self._model, entry), origin=self._origin)
        n_bytes = self._files.write(name, encode(entry, description, self._secret))
        self._listed_names.add(name)
        if self._path is not None:
            self._remove_oldest(self._path, {name, *used})
        return n_bytes

    def _remove_oldest(self, here: Path, used: set[str]) -> None:
        """Remove unfinished files of killed processes. While all files exceed the limit, remove the oldest ones that
        this process does not use.
        """
        try:
            SlotFiles(here.parent).remove_stale()
            files = [(path, path.stat()) for path in here.parent.rglob(f"*{SUFFIX}")]
            n_bytes = sum(found.st_size for _, found in files)
            for path, found in sorted(files, key=lambda each: each[1].st_mtime):
                if n_bytes <= self._limit:
                    return
                if path.parent != here or path.name not in used:
                    path.unlink(missing_ok=True)
                    n_bytes -= found.st_size
        except OSError as error:  # another process may remove the same files
            log.warning("%s: %s", here.parent, error)

    def read(self, name: str) -> CacheEntry:
        """Return the content of a file. Raises `LlamapoolError` if any byte was changed, or for another model or other
        settings.
        """
        saved, _ = self._read(name)
        if saved is None:
            raise InvalidRequest("it was saved under another model, other settings, or adapters that are not loaded")
        return saved

    def used(self, name: str) -> None:
        """Set the file's modification time, which is the time of its last use."""
        try:
            self._files.used(name)
        except LlamapoolError as error:
            log.warning("%s/%s: %s", self._where, name, error)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._listed_names.discard(name)
        try:
            self._files.remove(name)
        except LlamapoolError as error:
            log.warning("%s/%s cannot be removed: %s", self._where, name, error)


EMBEDDINGS_SUFFIX = ".embeddings"
_DIGEST_BYTES = 32


class EmbeddingFolder:
    """`server.engine.encode.EmbeddingFiles` for the model of this id."""

    def __init__(self, model_id: str, root: Path) -> None:
        self._path = root / folder_name(model_id) / "media"
        self._files = SlotFiles(self._path)

    def limit_to(self, n_bytes: int) -> int:
        """Remove the least recently used files beyond `n_bytes`; return the bytes left. Raises `InternalError`."""
        _create(self._path)
        found = [one for one in self._files.listed() if one.name.endswith(EMBEDDINGS_SUFFIX)]
        size = sum([one.n_bytes for one in found])
        for one in sorted(found, key=lambda one: one.age_s, reverse=True):
            if size > n_bytes:
                self._files.remove(one.name)
                size -= one.n_bytes
        return size

    def read(self, key: bytes) -> bytes | None:
        """Return the content of a file; None if there is none, or if it was corrupt and is removed."""
        try:
            with self._files.opened(_name(key)) as (file, size):
                content = file.read(size)
        except InvalidRequest:
            return None
        data, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if _embedding_digest(key, data) != digest:
            self._files.remove(_name(key))
            return None
        self._files.used(_name(key))
        return data

    def write(self, key: bytes, data: bytes) -> None:
        """Write a file completely or not at all. Raises `InternalError`."""
        self._files.write(_name(key), (data, _embedding_digest(key, data)))


def _name(key: bytes) -> str:
    return f"{key.hex()}{EMBEDDINGS_SUFFIX}"


def _embedding_digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=key).digest()
