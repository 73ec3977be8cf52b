"""An SQLite connection, which one thread uses.

The file is in WAL mode with ``synchronous=NORMAL``, so that commits survive ``kill -9`` of the server. Only a crash of
the operating system can lose the last commits (sqlite.org/pragma.html#pragma_synchronous).
"""

import asyncio
import contextlib
import fcntl
import glob
import logging
import os
import secrets
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from server.errors import ConfigError, Unavailable

T = TypeVar("T")
logger = logging.getLogger(__name__)

VERSION = 3
BUSY_S = 10.0
"""Maximum wait for another server's transaction on the same file."""
MEMORY = "memory"
_SCHEMA = """
CREATE TABLE objects (
  seq INTEGER PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, label TEXT, parent TEXT,
  is_unfinished INTEGER NOT NULL, used_at REAL NOT NULL, expires_at REAL, hidden INTEGER NOT NULL DEFAULT 0,
  worker TEXT NOT NULL, n_bytes INTEGER NOT NULL, document BLOB NOT NULL, data BLOB, UNIQUE (owner, id));

CREATE INDEX objects_by_kind ON objects (owner, kind);

CREATE INDEX objects_by_parent ON objects (owner, parent) WHERE parent IS NOT NULL;

CREATE INDEX objects_by_expiry ON objects (expires_at) WHERE expires_at IS NOT NULL;

CREATE INDEX objects_by_use ON objects (owner, used_at, seq DESC) WHERE kind = 'response';

CREATE INDEX objects_unfinished ON objects (kind) WHERE is_unfinished;

CREATE TABLE items (owner TEXT NOT NULL, id TEXT NOT NULL, object_id TEXT NOT NULL, PRIMARY KEY (owner, id, object_id))
  WITHOUT ROWID;

CREATE INDEX items_by_object ON items (owner, object_id);

CREATE TABLE batch_lines (
  owner TEXT NOT NULL, batch_id TEXT NOT NULL, run_order INTEGER NOT NULL, number INTEGER NOT NULL,
  custom_id TEXT NOT NULL, outcome TEXT, request BLOB NOT NULL, result BLOB,
  PRIMARY KEY (owner, batch_id, run_order));

CREATE INDEX batch_lines_by_number ON batch_lines (owner, batch_id, number, outcome);

CREATE TABLE usage (owner TEXT PRIMARY KEY, n_bytes INTEGER NOT NULL);

CREATE TRIGGER parts_of_removed AFTER DELETE ON objects BEGIN
  DELETE FROM items WHERE owner = OLD.owner AND object_id = OLD.id;
  DELETE FROM batch_lines WHERE owner = OLD.owner AND batch_id = OLD.id; END;

CREATE TABLE token_usage (
  key TEXT NOT NULL, model TEXT NOT NULL, day TEXT NOT NULL, requests INTEGER NOT NULL, prompt INTEGER NOT NULL,
  cached INTEGER NOT NULL, completion INTEGER NOT NULL, PRIMARY KEY (day, key, model))
"""
_QUOTA_BYTES = {
    "objects": ("n_bytes", "{row}.n_bytes"),
    "batch_lines": ("result", "length({row}.request) + coalesce(length({row}.result), 0)"),
}
"""Tables whose rows count against the quota: the column that updates may change, and the bytes of a row. Triggers keep
the sum of each owner in the table `usage`."""


def _counting_triggers() -> Iterator[str]:
    for table, (column, counted) in _QUOTA_BYTES.items():
        new, old = counted.format(row="NEW"), counted.format(row="OLD")
        for name, event, owner, n_bytes in (
            ("added", "INSERT", "NEW", new),
            ("removed", "DELETE", "OLD", f"-({old})"),
            ("changed", f"UPDATE OF {column}", "NEW", f"{new} - ({old})"),
        ):
            yield f"""
                CREATE TRIGGER {table}_{name} AFTER {event} ON {table} BEGIN
                INSERT INTO usage (owner, n_bytes) VALUES ({owner}.owner, {n_bytes})
                ON CONFLICT (owner) DO UPDATE SET n_bytes = n_bytes + excluded.n_bytes; END"""  # noqa: S608


def default_path() -> Path:
    """Return the state file in the user's XDG state directory (specifications.freedesktop.org/basedir-spec)."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "llamapool" / "state.sqlite3"


def open_database(place: str, contents: str = "responses, files and batches") -> "Database":
    """Open the state in `place`: ``auto``, ``memory`` or a path. `contents`: its description in the log.

    ``auto`` is `default_path`, or memory with a warning if that file cannot be opened. Raises `ConfigError` if another
    path cannot be opened.
    """
    if place == MEMORY:
        return Database(None)
    path = default_path() if place == "auto" else Path(place)
    try:
        return Database(path)
    except ConfigError as error:
        if place != "auto":
            raise
        logger.warning("%s; %s are kept in memory and end with the server", error.message, contents)
        return Database(None)


class Database:
    """The connection to `path`, or to memory for None. Raises `ConfigError` if the file cannot be opened.

    Several servers may use one file, in which ``worker`` identifies this one. A running server holds the lock of its
    own file next to the database, so that others notice its end, even after ``kill -9``.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.worker = secrets.token_hex(8)
        self._lock: int | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="state")
        try:
            self._connection = self._threads.submit(_connect, path).result()
            weakref.finalize(self, self._connection.close)  # also if the application is never started
            if path is not None:
                self._lock = _create_locked(_lock_file(path, self.worker))
                for each in _lock_files(path):
                    if not _is_locked(each):  # its server was killed
                        each.unlink(missing_ok=True)
        except (sqlite3.Error, OSError, ConfigError) as error:
            self._threads.shutdown()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"server.state: {path} cannot be opened: {error}; name another file") from None

    def is_running(self, worker: str) -> bool:
        """Return whether the server with this id still runs; blocks."""
        if worker == self.worker:
            return True
        return self.path is not None and _is_locked(_lock_file(self.path, worker))

    def is_alone(self) -> bool:
        """Return whether no other running server uses the file; blocks."""
        if self.path is None:
            return True
        own = _lock_file(self.path, self.worker)
        return not any(_is_locked(each) for each in _lock_files(self.path) if each != own)

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `function`, called in one transaction in the database's thread.

        The transaction is committed before this returns, and rolled back if `function` raises. It continues if the
        caller is cancelled. Raises `Unavailable` if SQLite fails, for example because the disk is full.
        """
        return await asyncio.shield(asyncio.wrap_future(self._threads.submit(self._run_transaction, function)))

    async def execute(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a statement, run in a separate transaction. Raises `Unavailable`."""
        return await self.run(lambda db: db.execute(query, values).fetchall())

    def _run_transaction(self, function: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                result = function(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            logger.exception("the state file cannot be used")
            raise Unavailable(f"the server's state cannot be used: {error}") from None
        return result

    def close(self) -> None:
        """Close the file after the submitted transactions; blocks."""
        self._threads.submit(self._connection.close)
        self._threads.shutdown()
        if self._lock is not None and self.path is not None:
            _lock_file(self.path, self.worker).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def _lock_file(path: Path, worker: str) -> Path:
    return path.with_name(f"{path.name}-server-{worker}")


def _lock_files(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{glob.escape(path.name)}-server-*"))


def _create_locked(path: Path) -> int:
    """Create and lock a file. Return its descriptor, which holds the lock."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass  # another server removed it as stale before it was locked
        os.close(descriptor)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    connection = sqlite3.connect(path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    connection.row_factory = sqlite3.Row
    with contextlib.suppress(sqlite3.OperationalError):  # another server that creates the file does it
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise ConfigError(
            f"server.state: {path} was written by another Llamapool (format {version}, this one reads {VERSION}); "
            "name another file, or install that version"
        )
    for statement in (*_SCHEMA.split(";\n\n"), *_counting_triggers()) if version == 0 else ():
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
