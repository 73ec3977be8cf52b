"""Encrypted reasoning that clients send back, and the file of its secret."""

import base64
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.dialects.reasoning_cipher import ReasoningCipher, TamperedReasoning
from server.errors import ConfigError
from server.state.reasoning_keys import reasoning_secrets

OLD, NEW = b"an older secret of 26 bytes", b"a newer secret of 26 bytes"
CIPHER = ReasoningCipher([NEW])


@given(st.text(max_size=200))
def test_encrypted_text_is_unreadable_and_decrypts_to_itself(text: str) -> None:
    text = text.encode(errors="replace").decode()
    value = CIPHER.encrypt(text)
    assert CIPHER.decrypt(value) == text
    assert value != CIPHER.encrypt(text)  # equal texts have different values
    assert text.encode() not in base64.b64decode(value) or len(text) < 4


@given(st.data())
def test_a_changed_value_is_never_decrypted(data: st.DataObject) -> None:
    sealed = base64.b64decode(CIPHER.encrypt("I must look at the sky."))
    at = data.draw(st.integers(0, len(sealed) - 1))
    bits = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([b"", sealed[at + 1 :]]))
    changed = sealed[:at] + bytes([sealed[at] ^ bits]) + end
    try:
        assert changed == sealed or CIPHER.decrypt(base64.b64encode(changed).decode()) is None
    except TamperedReasoning:
        assert changed[:9] == sealed[:9]


@pytest.mark.parametrize("added", ["A", "é", "=", "\n"])
def test_invalid_base64_is_rejected(added: str) -> None:
    value = CIPHER.encrypt("I must look at the sky.")
    with pytest.raises(TamperedReasoning):
        CIPHER.decrypt(value[:20] + added + value[20:])


def test_values_of_other_servers_are_ignored() -> None:
    for foreign in (ReasoningCipher([OLD]).encrypt("x"), "gAAAAABo", "EqoBCkgIARAB", "", "lp", "é"):
        assert CIPHER.decrypt(foreign) is None


def test_the_secret_is_stored_next_to_the_state_file_for_later_starts(tmp_path: Path) -> None:
    [first] = reasoning_secrets(None, tmp_path / "state.sqlite3")
    assert reasoning_secrets(None, tmp_path / "state.sqlite3") == [first]
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert reasoning_secrets(None, None) != reasoning_secrets(None, None)


def test_an_invalid_secret_file_is_replaced_by_a_temporary_secret(tmp_path: Path) -> None:
    (tmp_path / "state.reasoning-key").write_text("short\n")
    state = tmp_path / "state.sqlite3"
    assert reasoning_secrets(None, state) != reasoning_secrets(None, state)


def test_a_key_file_lists_the_newest_secret_first(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(NEW + b"\n\n" + OLD + b"\r\n")
    assert reasoning_secrets(file, None) == [NEW, OLD]
    for wrong in (b"", b"short\n", NEW + b"\nshort\n"):
        file.write_bytes(wrong)
        with pytest.raises(ConfigError, match="reasoning_key_file"):
            reasoning_secrets(file, None)
    with pytest.raises(ConfigError, match="check the path"):
        reasoning_secrets(tmp_path / "none", None)
