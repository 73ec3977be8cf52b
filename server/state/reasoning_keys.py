"""The secrets that encrypt reasoning text in opaque fields of replies (`server.dialects.reasoning_cipher`).

They must survive a restart of the server, after which agents continue sessions with the fields of earlier replies.
"""

import logging
import os
import secrets
from pathlib import Path

from server.errors import ConfigError

logger = logging.getLogger(__name__)

MIN_BYTES = 16
_NEW_BYTES = 32


def reasoning_secrets(key_file: Path | None, state: Path | None) -> list[bytes]:
    """Return the secrets; the first one encrypts.

    `key_file` has one on each line. Otherwise the secret is in a file next to the `state` file, which is created with a
    random secret. If the state is in memory (None), so is the secret. Raises `ConfigError`.
    """
    if key_file is not None:
        return _read(key_file)
    if state is None:
        return [secrets.token_bytes(_NEW_BYTES)]
    path = state.with_suffix(".reasoning-key")
    try:
        _create(path)
        return _read(path)
    except (OSError, ConfigError) as error:
        logger.warning(
            "%s cannot be used (%s): after a restart agents lose the reasoning of earlier turns", path, error
        )
        return [secrets.token_bytes(_NEW_BYTES)]


def _read(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"server.reasoning_key_file: {path}: {error.strerror}; check the path") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found or min(map(len, found)) < MIN_BYTES:
        raise ConfigError(
            f"server.reasoning_key_file: {path}: each line must have at least {MIN_BYTES} bytes; "
            "create a key with: openssl rand -base64 32"
        )
    return found


def _create(path: Path) -> None:
    """Create the file with a random secret if it does not exist. If several servers do so, the first one wins."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(f"{secrets.token_urlsafe(_NEW_BYTES)}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
