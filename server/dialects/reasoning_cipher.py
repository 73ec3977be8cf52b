"""Encrypts reasoning for opaque fields of replies: Anthropic's ``signature`` and Responses' ``encrypted_content``.

Clients send these fields back. So the next prompt contains the reasoning even if it was not visible to the client, and
no client can change it. A value is base64::

    magic (3 bytes)  key id (6)  |  nonce (12)  AES-256-GCM of the zlib-compressed text

Compacted conversations are encrypted in the same way. The purpose is authenticated with the text, so that a value
cannot replace one with another purpose. The first 9 bytes, 12 characters of base64, identify the key. ADR 16 has the
reasons.
"""

import base64
import binascii
import hashlib
import os
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

REASONING, COMPACTION = b"", b"compaction"
"""Purposes of encrypted values."""
_MAGIC = b"lp1"
_ID_BYTES, _NONCE_BYTES, _HEAD_CHARS = 6, 12, 12


class TamperedReasoning(ValueError):
    """A key of this server encrypted the value, but it was changed, truncated, or encrypted for another purpose."""


def _key(secret: bytes) -> tuple[str, bytes]:
    """Return the prefix of values that this key encrypts, and the key."""
    derived = hashlib.blake2b(secret, digest_size=32 + _ID_BYTES, person=b"llamapool think").digest()
    return base64.b64encode(_MAGIC + derived[32:]).decode(), derived[:32]


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 6 MB, only if needed

    return AESGCM(key)


class ReasoningCipher:
    """Encrypts with the first of `secrets` and decrypts with any. Without secrets nothing is encrypted. Thread-safe."""

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        self._keys = dict(map(_key, secrets))
        self._head = next(iter(self._keys), "")

    def encrypt(self, text: str, purpose: bytes = REASONING) -> str:
        """Return `text` as an opaque value, "" without a key."""
        if not self._head:
            return ""
        nonce = os.urandom(_NONCE_BYTES)
        packed = zlib.compress(text.encode(errors="replace"), level=1)
        box = _cipher(self._keys[self._head]).encrypt(nonce, packed, purpose)
        return self._head + base64.b64encode(nonce + box).decode()

    def decrypt(self, value: str, purpose: bytes = REASONING) -> str | None:
        """Return the text of an opaque value, None if no key of this server encrypted it.

        Raises `TamperedReasoning`, also for a value with another purpose.
        """
        key = self._keys.get(value[:_HEAD_CHARS])
        if key is None:
            return None
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.b64decode(value[_HEAD_CHARS:], validate=True)
            return zlib.decompress(_cipher(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose)).decode()
        except (binascii.Error, ValueError, InvalidTag) as error:
            raise TamperedReasoning from error


NO_CIPHER = ReasoningCipher()
