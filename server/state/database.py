"""One SQLite connection, used by one thread.

The file is in WAL mode with ``synchronous=NORMAL``: what was committed survives ``kill -9`` of the server. Only a crash
of the operating system can lose the last commits (sqlite.org/pragma.html#pragma_synchronous).
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from server.errors import ConfigError, Unavailable

T = TypeVar("T")
logger = logging.getLogger(__name__)

VERSION = 1
BUSY_S = 10.0
"""Longest wait for another server's transaction on the same file."""
MEMORY = "memory"
_SCHEMA = """
CREATE TABLE objects (
  owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, status TEXT, parent TEXT, body BLOB NOT NULL,
  created_at REAL NOT NULL, used_at REAL NOT NULL, expires_at REAL, hidden INTEGER NOT NULL DEFAULT 0,
  n_bytes INTEGER NOT NULL, PRIMARY KEY (owner, id));
CREATE INDEX objects_by_kind ON objects (owner, kind, created_at);
CREATE INDEX objects_by_parent ON objects (owner, parent) WHERE parent IS NOT NULL;
CREATE INDEX objects_by_expiry ON objects (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE items (
  owner TEXT NOT NULL, object_id TEXT NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
  is_output INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (owner, object_id, position));
CREATE INDEX items_by_id ON items (owner, id);
CREATE TABLE blobs (
  owner TEXT NOT NULL, hash TEXT NOT NULL, data BLOB NOT NULL, n_bytes INTEGER NOT NULL, PRIMARY KEY (owner, hash));
CREATE TABLE blob_uses (
  owner TEXT NOT NULL, hash TEXT NOT NULL, object_id TEXT NOT NULL, position INTEGER NOT NULL,
  PRIMARY KEY (owner, hash, object_id, position));
CREATE INDEX blob_uses_by_object ON blob_uses (owner, object_id, position);
CREATE TABLE batch_lines (
  owner TEXT NOT NULL, batch_id TEXT NOT NULL, run_order INTEGER NOT NULL, number INTEGER NOT NULL,
  custom_id TEXT NOT NULL, request BLOB NOT NULL, result BLOB, failed INTEGER,
  PRIMARY KEY (owner, batch_id, run_order));
CREATE UNIQUE INDEX batch_lines_by_number ON batch_lines (owner, batch_id, number);
"""


def default_path() -> Path:
    """The state file in the user's XDG state directory (specifications.freedesktop.org/basedir-spec)."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "llamapool" / "state.sqlite3"


def open_database(place: str) -> "Database":
    """Open the state of `place`: ``auto``, ``memory`` or a path.

    ``auto`` is `default_path`; if that file cannot be written, the state is kept in memory and a warning says so.
    Raises `ConfigError` for any other path that cannot be opened.
    """
    if place == MEMORY:
        return Database(None)
    path = default_path() if place == "auto" else Path(place)
    try:
        return Database(path)
    except ConfigError as error:
        if place != "auto":
            raise
        logger.warning("%s; responses, files and batches are kept in memory and end with the server", error.message)
        return Database(None)


class Database:
    """The connection to `path`, or to memory for None. Raises `ConfigError` if the file cannot be opened.

    ``is_first``: whether no other running server uses the file. Only such a server ends or continues what an earlier
    one left unfinished.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock: int | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="state")
        try:
            self._connection = self._threads.submit(_connect, path).result()
        except (sqlite3.Error, OSError) as error:
            self._threads.shutdown()
            raise ConfigError(f"server.state: {path} cannot be opened: {error}; name another file") from None
        except ConfigError:
            self._threads.shutdown()
            raise
        self.is_first = path is None or self._take_lock(path)

    def _take_lock(self, path: Path) -> bool:
        self._lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` returns, done in one transaction in the database's thread.

        The transaction is committed before this returns and rolled back if `work` raises. A caller that is cancelled
        does not stop it. Raises `Unavailable` if SQLite fails, for example because the disk is full.
        """
        return await asyncio.shield(asyncio.wrap_future(self._threads.submit(self._transact, work)))

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                found = work(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            logger.exception("the state file cannot be used")
            raise Unavailable(f"the server's state cannot be used: {error}") from None
        return found

    def close(self) -> None:
        """Finish what was submitted and close the file. Blocking."""
        self._threads.submit(self._connection.close)
        self._threads.shutdown()
        if self._lock is not None:
            os.close(self._lock)


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    connection = sqlite3.connect(path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        connection.close()
        raise ConfigError(
            f"server.state: {path} was written by a newer Llamapool (format {version}, this one reads {VERSION}); "
            "name another file or upgrade"
        )
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
    return connection
