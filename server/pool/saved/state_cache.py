"""What a model caches on disk (``cache_disk``): prompt states (`StateFolder`), embeddings of media (`EmbeddingFolder`).

The folder of a model id contains one folder per `slots.origin_of_cells`, so that other settings, adapters or versions
keep their states. Any number of processes may use such a folder: each one lists it again for states of the others. The
oldest files are removed when all files of the model exceed the limit; at a URL, files of other settings are removed by
rules of the store. Where a folder is shared (a URL always is), states are written early, and unusable files stay.

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
from server.pool.saved.slots import adapter_set_of, adapters_here, describe, origin_of_cells, projector_of
from server.pool.saved.store import Listed, SavedFiles, SlotFiles, UrlFiles
from server.pool.spec import ModelSpec

log = logging.getLogger(__name__)

SUFFIX = ".state"
FOLDER_S = 1.0  # seconds between two looks for states of other processes
SELDOM_S = 10.0  # of a URL, where each look is a request, and of a folder that is not shared
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(model_id: str) -> str:
    """Return the name of the folder of a model id, whatever characters it has."""
    return f"{_NOT_PLAIN.sub('_', model_id)[:64].strip('.')}-{_digest(model_id)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _files_below(root: Path | str, *names: str) -> SavedFiles:
    return UrlFiles("/".join((root.rstrip("/"), *names))) if isinstance(root, str) else SlotFiles(root.joinpath(*names))


def _create(*folders: Path) -> None:
    """Create folders that only this user can read: what is cached reveals conversations. Remove what killed processes
    left unfinished in the first one. Raises `InternalError`.
    """
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        SlotFiles(folders[0]).remove_stale()
    except OSError as error:
        raise InternalError(f"{folders[-1]}: {error.strerror or error}") from error


def remove_states(spec: ModelSpec) -> int:
    """Remove the states that a model has on disk, also of other settings. Return their tokens, as far as they can be
    read. Raises `InternalError`.
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
        """`limit`: most bytes of all the model's files; `secret` signs them. An address as `root` is always shared."""
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
        self._seen: set[str] = set()  # names that were looked at

    @property
    def follow_s(self) -> float:
        """Seconds between two calls of `others`."""
        return FOLDER_S if self.shared and self._path is not None else SELDOM_S

    def index(self) -> list[CacheEntry]:
        """Return the states that fit this model; remove damaged files. Raises `InternalError`."""
        if self._path is not None:
            _create(self._path.parent, self._path)
        self._seen = set()
        return self.others()[0]

    def others(self) -> tuple[list[CacheEntry], set[str]]:
        """Return states added since the last call, and names of those that are gone. Raises `InternalError`."""
        listed = {one.name: one for one in self._files.listed() if one.name.endswith(SUFFIX)}
        gone, fresh = self._seen - listed.keys(), sorted(listed.keys() - self._seen)
        self._seen = set(listed)
        return [entry for name in fresh if (entry := self._entry(listed[name])) is not None], gone

    def _entry(self, listed: Listed) -> CacheEntry | None:
        name = listed.name
        try:
            saved, size = self._read(name, states=False)
        except LlamapoolError as error:
            log.warning("%s/%s is %s: %s", self._where, name, "left" if self.shared else "removed", error)
            if not self.shared:  # otherwise another process may be able to use it
                self.remove(name)
            return None
        if saved is not None:
            saved.name, saved.size, saved.last_used = name, size, -listed.age_s
        return saved

    def _read(self, name: str, *, states: bool = True) -> tuple[CacheEntry | None, int]:
        """Return a file's content and its bytes. None: it can't be used now. It is of another model or other settings,
        its adapters or its projector are not loaded, or no slot has room for it.
        """
        with self._files.opened(name) as (file, size):
            saved = open_saved(file, size, self._secret)
            found = saved.description
            adapters = adapters_here(self._model, found.lora)
            own = found.origin == self._origin and found.media in ("", projector_of(self._model))
            if adapters is None or not own or found.n_tokens > self._model.engine.n_ctx_seq:
                return None, size
            return saved.read(self._model.vocab.n_tokens, adapter_set_of(found, adapters), states=states), size

    def write(self, name: str, entry: CacheEntry, used: Collection[str]) -> int:
        """Whole or not at all; its bytes. Raises `InternalError` with the system's reason."""
        description = replace(describe(self._model, entry), origin=self._origin)
        n_bytes = self._files.write(name, encode(entry, description, self._secret))
        self._seen.add(name)
        if self._path is not None:
            self._forget_others(self._path, {name, *used})
        return n_bytes

    def _forget_others(self, here: Path, used: set[str]) -> None:
        """Remove what killed processes left unfinished, and the oldest files that this process does not use, while
        there are too many bytes of all.
        """
        try:
            SlotFiles(here.parent).remove_stale()
            every = [(path, path.stat()) for path in here.parent.rglob(f"*{SUFFIX}")]
            n_bytes = sum(found.st_size for _, found in every)
            for path, found in sorted(every, key=lambda each: each[1].st_mtime):
                if n_bytes <= self._limit:
                    return
                if path.parent != here or path.name not in used:
                    path.unlink(missing_ok=True)
                    n_bytes -= found.st_size
        except OSError as error:  # another process does the same
            log.warning("%s: %s", here.parent, error)

    def read(self, name: str) -> CacheEntry:
        """Raises `LlamapoolError` unless every byte is what was written, under the same model and settings."""
        saved, _ = self._read(name)
        if saved is None:
            raise InvalidRequest("it was saved under another model, other settings, or adapters that are not here")
        return saved

    def used(self, name: str) -> None:
        """Set the file's time, which is the time of last use."""
        try:
            self._files.used(name)
        except LlamapoolError as error:
            log.warning("%s/%s: %s", self._where, name, error)

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        self._seen.discard(name)
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
        """Remove the files used longest ago beyond `n_bytes`; return the bytes left. Raises `InternalError`."""
        _create(self._path)
        found = [one for one in self._files.listed() if one.name.endswith(EMBEDDINGS_SUFFIX)]
        size = sum([one.n_bytes for one in found])
        for one in sorted(found, key=lambda one: one.age_s, reverse=True):
            if size > n_bytes:
                self._files.remove(one.name)
                size -= one.n_bytes
        return size

    def read(self, key: bytes) -> bytes | None:
        """None for a file that is gone, or not what was written; then it is removed."""
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
        """Whole or not at all. Raises `InternalError`."""
        self._files.write(_name(key), (data, _embedding_digest(key, data)))


def _name(key: bytes) -> str:
    return f"{key.hex()}{EMBEDDINGS_SUFFIX}"


def _embedding_digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=key).digest()
