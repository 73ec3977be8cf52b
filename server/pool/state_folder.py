"""The folder of a model's prompt states on disk (``cache_disk``): saved slots' files, see `slot_file`.

One process at a time uses it, and it holds nothing but what the present configuration can use: files that are damaged
or of other weights, settings or adapters are removed when the folder is opened. All blocking.
"""

import fcntl
import hashlib
import importlib.metadata
import logging
import os
import re
import time
from dataclasses import replace
from pathlib import Path

from server.engine.kv.disk_cache import OnDisk
from server.engine.lora import NEVER, Tuning
from server.engine.step.slot_state import SlotState
from server.errors import InternalError, InvalidRequest, LlamapoolError
from server.pool.model import LoadedModel
from server.pool.slot_file import Description, encode, open_saved
from server.pool.slot_files import SlotFiles
from server.pool.slot_origin import adapters_here, describe, origin_of

log = logging.getLogger(__name__)

SUFFIX = ".state"
_LOCK = ".lock"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(model_id: str) -> str:
    """A folder of its own for each model id, whatever characters it has."""
    digest = hashlib.blake2b(model_id.encode(), digest_size=4).hexdigest()
    return f"{_NOT_PLAIN.sub('_', model_id)[:64].strip('.')}-{digest}"


class StateFolder:
    """`server.engine.kv.disk_cache.StateFiles` for one loaded model."""

    def __init__(self, model: LoadedModel, root: Path) -> None:
        self._model = model
        self._path = root / folder_name(model.spec.id)
        self._files = SlotFiles(self._path)
        self._locked: int | None = None
        # another build of the library may write states in another form
        self._origin = origin_of(model) | {"library": importlib.metadata.version("llama_cpp_python")}

    def index(self) -> list[OnDisk]:
        """What is there and fits this model; the rest is removed. Raises `InternalError`, also when another process
        uses the folder."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)  # states tell what was said
            self._lock()
            names = sorted(os.listdir(self._path))
        except OSError as error:
            raise InternalError(f"{self._path}: {error.strerror or error}") from error
        self._files.remove_unfinished()
        entries = [self._entry(name) for name in names if name.endswith(SUFFIX)]
        return [entry for entry in entries if entry is not None]

    def _lock(self) -> None:
        self._locked = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InternalError(f"{self._path} is used by another process") from None

    def _entry(self, name: str) -> OnDisk | None:
        try:
            with self._files.opened(name) as (file, size):
                age_s = max(time.time() - os.fstat(file.fileno()).st_mtime, 0.0)
                found = open_saved(file, size)
                tuning = self._tuning(found.description)
                tokens = found.read_tokens(self._model.vocab.n_tokens)
        except LlamapoolError as error:
            log.warning("%s is removed: %s", self._path / name, error)
            self.remove(name)
            return None
        n_exact = found.description.n_exact
        return OnDisk(
            *(tokens, tuning, NEVER if n_exact is None else n_exact, size, -age_s),
            places=tuple(n_tokens for n_tokens, _ in found.description.checkpoints),
            name=name,
        )

    def _tuning(self, found: Description) -> Tuning:
        """Raises `InvalidRequest` for a file of another model, other settings, or adapters that are not loaded."""
        if found.origin != self._origin:
            raise InvalidRequest("it was saved under another model, other settings or another library")
        adapters = adapters_here(self._model, found.lora)
        if adapters is None:
            raise InvalidRequest("it was computed with LoRA adapters that are not loaded")
        return Tuning(adapters, NEVER if found.lora_start is None else found.lora_start)

    def write(self, name: str, saved: SlotState) -> int:
        """Whole or not at all; its bytes. Raises `InternalError` with the system's reason."""
        description = replace(describe(self._model, saved), origin=self._origin)
        return self._files.write(name, encode(saved, description))

    def read(self, name: str) -> SlotState:
        """Raises `LlamapoolError` unless every byte is what was written, under the same model and settings."""
        with self._files.opened(name) as (file, size):
            found = open_saved(file, size)
            tuning = self._tuning(found.description)
            tokens, state, checkpoints = found.read(self._model.vocab.n_tokens)
        n_exact = found.description.n_exact
        return SlotState(tokens, state, tuning, NEVER if n_exact is None else n_exact, checkpoints)

    def used(self, name: str) -> None:
        """Its time of last use is the file's."""
        try:
            os.utime(self._path / name)
        except OSError as error:
            log.warning("%s: %s", self._path / name, error)

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._path / name, error)

    def close(self) -> None:
        """Let another process use the folder."""
        locked, self._locked = self._locked, None
        if locked is not None:
            os.close(locked)
