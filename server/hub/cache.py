"""The cache folder that Hugging Face's tools and llama.cpp share::

    CACHE/
    └── models--owner--name/
        ├── blobs/<oid>                         contents by hash
        ├── refs/main                           the last known commit
        └── snapshots/<commit>/model-Q8_0.gguf  -> ../../blobs/<oid>

All tools share a downloaded model. This module does not use the network.
"""

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from server.errors import ConfigError
from server.hub.names import HubFile, Reference, is_model, is_repository, parts_of

_FOLDERS = (
    ("LLAMA_CACHE", ""),
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
    ("HOME", ".cache/huggingface/hub"),
)
"""Environment variable and folder below it; the first that is set applies (llama.cpp common/hf-cache.cpp,
get_cache_directory)."""
_PREFIX = "models--"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_OID = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
PARTIAL = ".incomplete"


home = Path.home
"""Replaced in tests."""


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the cache folder according to the variables of llama.cpp and Hugging Face."""
    for variable, below in _FOLDERS:
        if base := env.get(variable):
            return Path(base).expanduser() / below
    return home() / ".cache" / "huggingface" / "hub"


def is_commit(text: str) -> bool:
    """Return whether `text` is a git commit, 40 digits."""
    return _COMMIT.fullmatch(text) is not None


def is_oid(text: str) -> bool:
    """Return whether `text` is a hash of a content: 40 or 64 digits."""
    return _OID.fullmatch(text) is not None


def is_inside(path: str) -> bool:
    """Return whether a file name of a hub stays inside a folder on any system."""
    parts = PurePosixPath(path).parts
    bad = any(part in ("..", ".", "/") or part != part.strip() for part in parts)
    return bool(parts) and not bad and not re.search(r'[\\:*?"<>|\x00-\x1f]', path) and len(path) < 1024


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A cached model: its name, its first file, and the bytes of all its parts."""

    reference: Reference
    path: Path
    size: int
    modified: float  # unix seconds


class Cache:
    """A cache folder, which is created on the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- reading

    def snapshot(self, repository: str) -> dict[str, Path]:
        """Return a repository's files by name: those of the last commit, then models of older commits that have no
        newer version. All parts of a split model are from the newest commit with all of them.
        """
        return {name: path for files in self._by_model(repository).values() for name, path in files.items()}

    def _by_model(self, repository: str) -> dict[tuple[str, int], dict[str, Path]]:
        """Group `snapshot` by prefix and number of parts, which is 0 for files that are no GGUF."""
        base = self._base(repository)
        last = _last_commit(base / "refs")
        if not last:
            return {}
        found: dict[tuple[str, int], dict[str, Path]] = {}
        with contextlib.suppress(OSError):
            for root in _newest_first(base / "snapshots", last):
                of_commit: dict[tuple[str, int], dict[str, Path]] = {}
                for path in sorted(path for path in root.rglob("*") if path.is_file()):
                    name = path.relative_to(root).as_posix()
                    parts = parts_of(name)
                    of_commit.setdefault((parts.prefix, parts.count) if parts else (name, 0), {})[name] = path
                for key, files in of_commit.items():
                    is_gguf = key[1] > 0  # a preset applies only to the models of its commit
                    if (is_gguf or root.name == last) and len(files) > len(found.get(key, ())):
                        found[key] = files
        return found

    def models(self) -> list[CachedModel]:
        """Return the models with a quantization in their name, ordered as llama-server lists them. Raises `ConfigError`
        if the folder cannot be read.
        """
        found: list[CachedModel] = []
        for repository in self._repositories():
            by_tag: dict[str, dict[str, Path]] = {}
            for files in self._by_model(repository).values():
                name = next(iter(files))
                parts = parts_of(name)
                if parts is not None and parts.index == 1 and parts.tag and is_model(name):
                    by_tag.setdefault(parts.tag, files)
            for tag, files in sorted(by_tag.items()):
                first, *_ = files.values()
                with contextlib.suppress(FileNotFoundError):  # the model is being removed
                    stats = [path.stat() for path in files.values()]
                    size, modified = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
                    found.append(CachedModel(Reference(repository, tag), first, size, modified))
        return found

    def _repositories(self) -> Iterator[str]:
        try:
            names = sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self.folder}: the cache of models cannot be read: {error.strerror}") from None
        for name in names:
            repository = name.removeprefix(_PREFIX).replace("--", "/")
            if name.startswith(_PREFIX) and is_repository(repository):
                yield repository

    # ---- paths

    def _base(self, repository: str) -> Path:
        assert is_repository(repository), "references are parsed"
        return self.folder / (_PREFIX + repository.replace("/", "--"))

    def blob(self, repository: str, oid: str) -> Path:
        """Return the path of the blob with this hash."""
        assert is_oid(oid), "hashes are checked in listings"
        return self._base(repository) / "blobs" / oid

    def lock(self, repository: str, oid: str) -> Path:
        """Return the file that huggingface_hub locks while it downloads this blob."""
        return self.folder / ".locks" / self._base(repository).name / f"{oid}.lock"

    def snapshot_path(self, repository: str, commit: str, name: str) -> Path:
        """Return the path of a file in the snapshot folder of a commit."""
        assert is_commit(commit), "commits are checked in listings"
        assert is_inside(name), "names are checked in listings"
        return self._base(repository) / "snapshots" / commit / name

    # ---- writing

    def link(self, repository: str, commit: str, file: HubFile) -> Path:
        """Link a blob into the snapshot folder of its commit. Return the path."""
        path, blob = self.snapshot_path(repository, commit, file.path), self.blob(repository, file.oid)
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        link = _temporary(path)
        link.symlink_to(os.path.relpath(blob, path.parent))
        os.replace(link, path)
        return path

    def set_ref(self, repository: str, branch: str, commit: str) -> None:
        """Record `commit` as the last one of a branch."""
        ref = self._base(repository) / "refs" / branch
        ref.parent.mkdir(parents=True, exist_ok=True)
        draft = _temporary(ref)
        draft.write_text(commit)
        os.replace(draft, ref)

    def discard_partial(self, repository: str) -> None:
        """Delete the data of interrupted downloads of a repository, and its folder if it contains nothing else."""
        base = self._base(repository)
        for partial in (base / "blobs").glob("*" + PARTIAL):
            if not _is_locked(self.lock(repository, partial.name.removesuffix(PARTIAL))):
                partial.unlink(missing_ok=True)
        if base.is_dir() and not any(path.is_file() for path in (base / "blobs").glob("*")):
            shutil.rmtree(base, ignore_errors=True)

    def remove(self, reference: Reference) -> int:
        """Delete a model's files of all commits; without a quantization, the whole repository. Return the bytes freed,
        0 if there is no such model.

        Blobs that other models use are kept, and siblings until the last model is deleted. With a quantization, data of
        interrupted downloads are kept, too. Raises OSError.
        """
        base = self._base(reference.repository)
        if not base.is_dir():
            return 0
        before = _bytes_below(base)
        if reference.tag:
            self._remove_tag(base, reference)
        if not reference.tag or not (_has_models(base) or any((base / "blobs").glob("*" + PARTIAL))):
            shutil.rmtree(base)
            return before
        return before - _bytes_below(base)

    def _remove_tag(self, base: Path, reference: Reference) -> None:
        tag = reference.tag.upper()
        files = [path for path in (base / "snapshots").rglob("*") if path.is_file()]
        tagged = [path for path in files if is_model(path.name) and (parts := parts_of(path.name)) and parts.tag == tag]
        blobs = [path.resolve() for path in tagged if path.is_symlink()]
        for path in tagged:
            path.unlink()
        used = {path.resolve() for path in (base / "snapshots").rglob("*") if path.is_symlink()}
        for blob in blobs:
            if blob not in used and blob.parent == (base / "blobs").resolve():
                blob.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Return a new path in the same folder, for a file that then replaces `path` atomically."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _is_locked(lock: Path) -> bool:
    """Return whether any process downloads this blob now."""
    with contextlib.suppress(FileNotFoundError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _last_commit(refs: Path) -> str:
    """Return the commit of ``main``, otherwise of any branch."""
    found = ""
    with contextlib.suppress(OSError):
        for ref in sorted(refs.iterdir(), key=lambda path: path.name != "main"):
            if not found and ref.is_file():
                commit = ref.read_text(encoding="ascii", errors="replace").strip()
                found = commit if is_commit(commit) else ""
    return found


def _newest_first(snapshots: Path, last: str) -> list[Path]:
    """Return the folders of a repository's commits: the `last` one, then the others, latest link first."""

    def rank(root: Path) -> tuple[bool, float, str]:
        times = (path.lstat().st_mtime for path in root.rglob("*") if path.is_file())
        return root.name == last, max(times, default=0.0), root.name

    return sorted((root for root in snapshots.iterdir() if is_commit(root.name)), key=rank, reverse=True)


def _has_models(base: Path) -> bool:
    """Return whether a repository has models or presets, not only siblings."""
    files = (path for path in (base / "snapshots").rglob("*") if path.is_file())
    return any(is_model(path.name) or parts_of(path.name) is None for path in files)


def _bytes_below(base: Path) -> int:
    """Return the bytes of all files without links."""
    return sum(path.lstat().st_size for path in base.rglob("*") if path.is_file() and not path.is_symlink())
