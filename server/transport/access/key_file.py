"""Read and extend the key file (``--keys-file``): YAML, with a hash in place of each key.

::

    keys:
      - name: ada
        hash: sha256:9f86d081...       # llamapool keys add FILE ada prints the key and writes this
        scopes: [infer, slots]         # infer, slots, lora, models, props, metrics; left out: infer
        models: [demo, qwen*]          # ids or aliases; left out: all
        mcp: [search, mcp.example.com] # labels or hosts of MCP servers; left out: none
        requests_per_minute: 60        # left out: unlimited, as the next two
        tokens_per_minute: 100000
        at_once: 4
        priority: 0                    # the most urgent priority that its requests may have
        expires: 2027-01-01
"""

import os
import secrets
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from math import inf
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from server.errors import ConfigError
from server.transport.access.endpoints import Scope
from server.transport.access.keys import Key, KeyLimits, digest_of

PREFIX = "llp-"
_HASH = "sha256:"
_KEY_BYTES = 32
MAX_BYTES = 4 << 20


class KeyEntry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
    hash: Annotated[str, Field(pattern=f"^{_HASH}[0-9a-f]{{64}}$")]
    scopes: tuple[Scope, ...] = ("infer",)
    models: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    requests_per_minute: Annotated[int, Field(ge=0)] = 0
    tokens_per_minute: Annotated[int, Field(ge=0)] = 0
    at_once: Annotated[int, Field(ge=0)] = 0
    priority: int = 0
    expires: datetime | date | None = None

    @field_validator("hash")
    @classmethod
    def _is_of_a_key(cls, hash_: str) -> str:
        if hash_ == hash_of(""):  # `printf "$KEY" | sha256sum` without the variable
            raise ValueError("it is the hash of an empty key")
        return hash_

    @property
    def key(self) -> Key:
        """Return the key that this entry describes."""
        limits = KeyLimits(self.requests_per_minute, self.tokens_per_minute, self.at_once)
        digest = bytes.fromhex(self.hash.removeprefix(_HASH))
        scopes = frozenset(self.scopes)
        expires = _moment(self.expires)
        return Key(self.name, digest, scopes, self.models, limits, self.priority, expires, mcp=self.mcp)


class _KeyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeyEntry, ...] = ()


def _moment(expires: datetime | date | None) -> float:
    """Return Unix seconds. A date without a time means its start in UTC."""
    if expires is None:
        return inf
    at = expires if isinstance(expires, datetime) else datetime.combine(expires, time(), UTC)
    return at.timestamp() if at.tzinfo is not None else at.replace(tzinfo=UTC).timestamp()


def read_entries(path: Path) -> tuple[KeyEntry, ...]:
    """Read a key file. Raises ConfigError that names the file, the entry and the mistake."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes; it is no file of keys")
        found: Any = yaml.safe_load(text.decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = _unread(error)
        raise ConfigError(f"{path}: the file of keys (server.keys_file) cannot be read: {reason}") from None
    try:
        entries = _KeyFile.model_validate({} if found is None else found).keys
    except ValidationError as error:
        raise ConfigError(f"{path}: {_mistake(found, error)}") from None
    hashes = [entry.hash for entry in entries]
    for entry in entries:
        if hashes.count(entry.hash) > 1:
            raise ConfigError(f"{path}: '{entry.name}' has the hash of another entry; remove one of them")
    return entries


def _unread(error: OSError | UnicodeDecodeError | yaml.YAMLError) -> str:
    """Return the reason without the text of the file, which may contain a key."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error.strerror if isinstance(error, OSError) else error)


def _mistake(found: object, error: ValidationError) -> str:
    """Return pydantic's first error, with the entry's name."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    entries = found.get("keys") if isinstance(found, Mapping) else None
    if isinstance(entries, list) and len(fault["loc"]) > 1 and isinstance(fault["loc"][1], int):
        entry = entries[fault["loc"][1]]
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            where += f" ('{entry['name'][:40]}')"
    of_hash = fault["loc"][-1:] == ("hash",)
    remedy = "; `llamapool keys add FILE NAME` makes a key and writes its hash" if of_hash else ""
    return f"{where}: {fault['msg']}{remedy}" if where else str(fault["msg"])


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file. Raises ConfigError."""
    return tuple(entry.key for entry in read_entries(path))


def new_key() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_of(key: str) -> str:
    """Return the hash of a key as the file contains it."""
    return _HASH + digest_of(key.encode()).hex()


def _take_over(path: Path, status: os.stat_result) -> None:
    """Give `path` another file's owner, group and mode. Raises ConfigError if this user may not do that."""
    try:
        os.chown(path, status.st_uid, status.st_gid)
    except PermissionError:
        raise ConfigError(
            f"{path.parent}: the file of keys belongs to another user or group; run this as root"
        ) from None
    path.chmod(status.st_mode & 0o777)


def add_entry(path: Path, fields: Mapping[str, Any]) -> None:
    """Append an entry and keep the file's comments, mode, owner and group. A new file is readable by its owner only.

    Raises ConfigError if the file or the entry is wrong; then the file is unchanged.
    """
    try:
        KeyEntry.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(_mistake(None, error)) from None
    exists = path.exists()
    entries = read_entries(path) if exists else ()
    text = path.read_text(encoding="utf-8") if exists else ""
    lines = yaml.safe_dump([dict(fields)], sort_keys=False, allow_unicode=True).splitlines()
    block = "\n".join(f"  {line}" for line in lines) + "\n"
    if not entries:
        block = "keys:\n" + block
        text = "\n".join(line for line in text.splitlines() if line.strip().startswith("#"))
    text += "" if not text or text.endswith("\n") else "\n"
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    status = path.stat() if exists else None
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if status is not None:
            _take_over(part, status)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text + block)
        if read_entries(part)[: len(entries)] != entries:
            raise ConfigError(f"{path}: an entry can't be added after its last one; write keys: as a plain list")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
