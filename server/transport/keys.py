"""API keys: the identity of a client, its permissions and limits, and the key file.

Clients send ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY`` (llama.cpp: tools/server/server-http.cpp).

The key file (``--keys-file``; docs/security.md shows one) is YAML with a hash in place of each key.
"""

import hashlib
import os
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from fcntl import LOCK_EX, flock
from fnmatch import fnmatchcase
from functools import cached_property, partial
from io import FileIO
from math import inf
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, field_validator
from yaml.composer import ComposerError

from server.errors import AuthenticationFailed, ConfigError, NotFound, PermissionDenied
from server.transport.endpoints import SCOPES, KeyScope, Target

INTERNAL = "llamapool.internal"
"""A key in the ASGI scope of a request that the server makes for a client, e.g. of a batch: the client's `Key`.

Such a request needs no credentials. Rate limits count its tokens, but not the request."""
PREFIX = "llp-"
MAX_BYTES = 4 << 20
_HASH = "sha256:"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_KEY_BYTES = 32
_NAME_HEX = 8
_BEARER = b"bearer "
_INVALID_KEY = "Invalid API Key"  # llama-server's text; the log says which header a key belongs in


class Key(BaseModel):
    """One key, known by its hash only: an entry of the key file, or a key without a name (`plain_key`).

    ``models`` are patterns of ids and aliases; no ``models`` = all. ``mcp`` are patterns of labels and hosts of MCP
    servers; no ``mcp`` = none. Token limits count prompts and replies; 0 = no limit. ``priority`` is the most urgent
    priority that its requests may have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
    hash: Annotated[str, Field(pattern=f"^{_HASH}[0-9a-f]{{64}}$")]
    scopes: tuple[KeyScope, ...] = ("infer",)
    models: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    requests_per_minute: NonNegativeInt = 0
    tokens_per_minute: NonNegativeInt = 0
    max_concurrent_requests: NonNegativeInt = 0
    tokens_per_day: NonNegativeInt = 0
    tokens_per_month: NonNegativeInt = 0
    priority: int = 0
    expires: datetime | date | None = None
    _is_named: bool = True

    @field_validator("hash")
    @classmethod
    def _check_key_is_not_empty(cls, hash_: str) -> str:
        if hash_ == hash_of(""):  # `printf "$KEY" | sha256sum` without the variable
            raise ValueError("it is the hash of an empty key")
        return hash_

    @field_validator(
        *("requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "tokens_per_day", "tokens_per_month"),
        "priority",
        mode="before",
    )
    @classmethod
    def _check_it_is_a_number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("should be a number")
        return value

    @field_validator("expires", mode="before")
    @classmethod
    def _check_it_is_a_date(cls, value: object) -> object:
        """Refuse numbers, which pydantic reads as Unix seconds or milliseconds."""
        if value is None or isinstance(value, date) or (isinstance(value, str) and _DATE.match(value)):
            return value
        raise ValueError("should be a date such as 2027-01-01, or a time such as 2027-01-01T10:00:00+02:00")

    @cached_property
    def owner(self) -> str:
        """The owner of its conversations, streams, caches and slot files; "" on a server without keys.

        Keys with the same name have the same owner, so a key can be replaced while the old one is still valid. Each
        unnamed key has its own owner, which no name in a file can equal.
        """
        if not self.name:
            return ""
        digest = bytes.fromhex(self.hash.removeprefix(_HASH))
        identity = b"name:" + self.name.encode() if self._is_named else b"key:" + digest
        return hashlib.sha256(identity).hexdigest()[:32]

    @cached_property
    def expires_at(self) -> float:
        """Unix seconds. A date without a time means its start in UTC."""
        if self.expires is None:
            return inf
        at = self.expires if isinstance(self.expires, datetime) else datetime.combine(self.expires, time_of_day())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()

    @cached_property
    def is_limited(self) -> bool:
        a_minute = self.requests_per_minute or self.tokens_per_minute
        return bool(a_minute or self.max_concurrent_requests or self.tokens_per_day or self.tokens_per_month)

    @property
    def sees_all(self) -> bool:
        """Whether it may see the activity of other clients."""
        return "metrics" in self.scopes

    def may_use(self, model_names: Iterable[str]) -> bool:
        """Return whether it may use a model with these names (id and aliases)."""
        return not self.models or any(fnmatchcase(name, pattern) for name in model_names for pattern in self.models)

    def may_call(self, name: str) -> bool:
        """Return whether its requests may use the MCP server of that label or host."""
        return any(fnmatchcase(name, pattern) for pattern in self.mcp)


def _unnamed(name: str, hash_: str) -> Key:
    """Return a key with all permissions that is not an entry of a file."""
    key = Key.model_construct(name=name, hash=hash_, scopes=SCOPES, mcp=("*",), priority=-sys.maxsize)
    key._is_named = False
    return key


ANYBODY = _unnamed("", "")


def plain_key(text: str) -> Key:
    """Return the key of ``--api-key`` or ``--api-key-file``. Its name is the start of its hash."""
    return _unnamed(_name_of(hash_of(text)), hash_of(text))


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_of(key: str | bytes) -> str:
    """Return the SHA-256 of a key. Keys are long and random, so a slow password hash is not needed."""
    return _HASH + hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


def _name_of(hash_: str) -> str:
    return f"key-{hash_[len(_HASH) :][:_NAME_HEX]}"


def given_key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key that a client sent, empty without one."""
    value = headers.get(b"authorization") or headers.get(b"x-api-key") or b""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else value


def given_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the log's name for an invalid key: the start of its hash, "" without a key."""
    given = given_key(headers)
    return _name_of(hash_of(given)) if given else ""


class KeyStore:
    """The server's valid keys. `required` False means that requests need no key.

    `required` never changes after the start: a key file that loses its last key does not open the server.
    """

    def __init__(self, keys: Iterable[Key] = (), *, required: bool | None = None) -> None:
        self.replace(keys)
        self.required = bool(self._by_hash) if required is None else required

    def replace(self, keys: Iterable[Key]) -> None:
        """Replace all keys. Running requests continue."""
        self._by_hash = {key.hash: key for key in keys}
        self.several = len({key.owner for key in self._by_hash.values()}) > 1

    def __len__(self) -> int:
        return len(self._by_hash)

    def named(self, name: str) -> Key | None:
        """Return a valid key of that name, `ANYBODY` for no name on a server without keys, otherwise None."""
        if not name:
            return None if self.required else ANYBODY
        return next((key for key in self._by_hash.values() if key.name == name and key.expires_at > time.time()), None)

    def find(self, given: bytes, now: Callable[[], float] = time.time) -> Key | None:
        """Return the valid key whose text is `given`, otherwise None. The lookup is by hash, so its duration reveals
        nothing about keys.
        """
        found = self._by_hash.get(hash_of(given))
        return None if found is None or found.expires_at <= now() else found

    def caller(self, headers: Mapping[bytes, bytes]) -> Key | None:
        """Return the key of a request: `ANYBODY` on a server without keys, None without a valid key."""
        return self.find(given_key(headers)) if self.required else ANYBODY

    def check(self, key: Key | None, target: Target, open_paths: Collection[str] = ()) -> None:
        """Check that `key` may reach the endpoint of `target`. `open_paths` need no key.

        Raises `AuthenticationFailed` without a key, and `PermissionDenied` if the key lacks the scope. For a path that
        the table of endpoints does not list it raises `NotFound`, unless the key has every scope.
        """
        need = target.endpoint.need
        if not self.required or need == "nothing" or target.endpoint.path in open_paths:
            return
        if key is None:
            raise AuthenticationFailed(_INVALID_KEY)
        if need == "every scope" and not set(key.scopes).issuperset(SCOPES):
            raise NotFound("File Not Found")
        if need not in ("any key", "every scope") and need not in key.scopes:
            raise PermissionDenied(f"this API key may not do this: it lacks the scope '{need}'")


class _KeyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[Key, ...] = ()


class _Loader(yaml.SafeLoader):
    """Refuses a mapping with a key that appears twice. The message does not quote the key, which may be a secret."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[object] = set()
        for key, _ in node.value:
            if isinstance(key.value, str):
                if key.value in seen:
                    raise ComposerError(None, None, "this field appears twice; remove one", key.start_mark)
                seen.add(key.value)
        return node


def read_keys(path: Path, added: bytes = b"") -> tuple[Key, ...]:
    """Read and check a key file, as if `added` were appended. Raises ConfigError with file, entry and error."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1) + added
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes; it is not a keys file")
        found: Any = _Loader(text.decode("utf-8")).get_single_data()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: invalid UTF-8 or date
        reason = _reason_of(error)
        raise ConfigError(f"{path}: the keys file (server.keys_file) cannot be read: {reason}") from None
    try:
        keys = _KeyFile.model_validate({} if found is None else found).keys
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_error(found, error)}") from None
    n_entries = Counter(key.hash for key in keys)
    for key in keys:
        if n_entries[key.hash] > 1:
            raise ConfigError(f"{path}: '{key.name}' has the hash of another entry; remove one of them")
    return keys


def _reason_of(error: OSError | ValueError | RecursionError | yaml.YAMLError) -> str:
    """Return the reason of a read error without the text of the file, which may contain a key."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error.strerror if isinstance(error, OSError) else error)


def _first_error(found: object, error: ValidationError) -> str:
    """Return pydantic's first error, with the entry's name."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    entries = found.get("keys") if isinstance(found, Mapping) else None
    if isinstance(entries, list) and len(fault["loc"]) > 1 and isinstance(fault["loc"][1], int):
        entry = entries[fault["loc"][1]]
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            where += f" ('{entry['name'][:40]}')"
    is_hash = fault["loc"][-1:] == ("hash",)
    remedy = "; `llamapool keys add FILE NAME` makes a key and writes its hash" if is_hash else ""
    return f"{where}: {fault['msg']}{remedy}" if where else str(fault["msg"])


def add_entry(path: Path, fields: Mapping[str, Any]) -> None:
    """Append an entry to the file, which keeps its comments. A new file is readable by its owner only.

    Raises ConfigError if the file or the entry is wrong; then the file is unchanged.
    """
    try:
        Key.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(_first_error(None, error)) from None
    lines = yaml.safe_dump([dict(fields)], sort_keys=False, allow_unicode=True).splitlines()
    entry = "".join(f"  {line}\n" for line in lines)
    try:
        with open(path, "a+b", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            flock(file, LOCK_EX)  # another process may add an entry
            keys, before = read_keys(path), path.read_bytes()
            start = len(before) if keys else 0
            if keys:
                entry = entry if before.endswith(b"\n") else "\n" + entry
                if read_keys(path, entry.encode())[: len(keys)] != keys:
                    raise ConfigError(f"{path}: no entry can be added after its last one; write keys: as a plain list")
            else:
                comments = (line for line in before.decode().splitlines() if line.strip().startswith("#"))
                entry = "\n".join([*comments, "keys:", entry])
            try:
                file.truncate(start)
                _write(file, entry.encode())
            except OSError:  # e.g. a full disk
                file.truncate(start)
                _write(file, before[start:])
                raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _write(file: FileIO, data: bytes) -> None:
    """Write all of `data`. Raises OSError if the disk is full."""
    while data:
        data = data[file.write(data) :]
