"""The bytes of a saved slot: what was written comes back, and nothing else does."""

import hashlib
import io
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import Checkpoint, SlotState
from server.errors import InternalError, InvalidRequest
from server.pool.saved.format import DATA_PREFIX, Description, encode, open_saved, read_foreign

DESCRIPTION = Description({"model": "abc", "n_ctx": 256}, (("lora", 0.5),), 3, (), 3, 2)
PREFIX = DATA_PREFIX + bytes(4)
SAVED = SlotState([7, 8, 9], PREFIX + b"state of the library", AdapterSet(((0, 0.5),), 3), 2)
WHOLE = b"".join(encode(SAVED, DESCRIPTION))


def read(content: bytes, n_vocab: int = 100) -> tuple[Description, list[int], bytes]:
    opened = open_saved(io.BytesIO(content), len(content))
    saved = opened.read(n_vocab, NO_ADAPTERS)
    assert not saved.media
    assert tuple((c.n_tokens, len(c.state)) for c in saved.checkpoints) == opened.description.checkpoints
    assert opened.read(n_vocab, NO_ADAPTERS, states=False) == saved.without_bytes
    return replace(opened.description, blake2b=""), saved.tokens, saved.state


def refusal(content: bytes, n_vocab: int = 100) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(content, n_vocab)
    return caught.value.message


@given(
    tokens=st.lists(st.integers(0, 99), max_size=300),
    state=st.binary(max_size=300),
    scales=st.lists(st.tuples(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)), max_size=3),
    exact=st.none() | st.integers(0, 300),
)
def test_what_was_saved_comes_back(
    tokens: list[int], state: bytes, scales: list[tuple[str, float]], exact: int | None
) -> None:
    description = Description({"model": "m"}, tuple(scales), None, tuple(scales), len(tokens), exact)
    content = b"".join(encode(SlotState(tokens, PREFIX + state, NO_ADAPTERS, 0), description))
    assert read(content) == (description, tokens, PREFIX + state)


class Large(io.BytesIO):
    """A file whose large parts must be read into their place: what `read` gives would be copied once more."""

    def read(self, n: int | None = -1) -> bytes:
        assert n is not None
        assert 0 <= n < 10_000, f"{n} bytes were read into a place of their own"
        return super().read(n)

    def readinto(self, target: Any) -> int:
        return super().readinto(memoryview(target)[:7000])


def test_a_state_is_read_to_where_it_stays() -> None:
    state = PREFIX + bytes(range(256)) * 200
    checkpoints = (Checkpoint(1, b"c" * 20_000), Checkpoint(2, b""))
    saved = SlotState([7, 8, 9], state, NO_ADAPTERS, 2, checkpoints)
    sizes = tuple((c.n_tokens, len(c.state)) for c in checkpoints)
    content = b"".join(encode(saved, replace(DESCRIPTION, checkpoints=sizes)))
    assert open_saved(Large(content), len(content)).read(100, NO_ADAPTERS) == saved


def test_the_file_begins_as_llama_server_writes_it() -> None:
    packed = struct.pack("<iII3iI", -1, 1, 3, 7, 8, 9, 0)
    expected = struct.pack("<III", 0x67677371, 3, len(packed) // 4) + packed + b"state of the library"
    assert WHOLE.startswith(expected + b'{"')


@pytest.mark.parametrize("bits", [0xFF, 0x01])
def test_every_changed_byte_is_refused(bits: int) -> None:
    for at in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[at] ^= bits
        refusal(bytes(changed))


def test_every_truncated_file_is_refused() -> None:
    messages = {refusal(WHOLE[:length]) for length in range(len(WHOLE))}
    assert messages == {
        "it is no saved slot",  # less than the magic number
        "it is truncated: Llamapool's part at its end is missing",
    }


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8))
def test_bytes_in_between_are_refused(at: int, more: bytes) -> None:
    refusal(WHOLE[:at] + more + WHOLE[at:])


THEIRS = WHOLE[: WHOLE.index(b'{"')]  # what llama-server writes
OLDER = struct.pack("<III3i", 0x67677371, 3, 3, 7, 8, 9) + b"state of the library"  # before tokens were packed


def foreign(content: bytes, n_vocab: int = 100) -> tuple[list[int], bytes] | None:
    found = read_foreign(io.BytesIO(content), len(content), n_vocab)
    if found is None:
        return None
    (tokens, media), state = found
    assert not media
    return tokens, state


@pytest.mark.parametrize("content", [THEIRS, OLDER, OLDER + WHOLE[len(THEIRS) :]])
def test_what_llama_server_itself_saved_is_read(content: bytes) -> None:
    assert foreign(content) == ([7, 8, 9], PREFIX + b"state of the library")


def test_a_file_of_ours_and_no_saved_slot_are_not_foreign() -> None:
    assert foreign(WHOLE) is None
    assert foreign(b"anything else that is longer than a head") is None
    assert foreign(THEIRS[:8]) is None


@pytest.mark.parametrize("content", [THEIRS, OLDER])
def test_a_foreign_file_that_is_cut_off_is_refused_or_leaves_the_library_less(content: bytes) -> None:
    state_at = len(content) - len("state of the library")
    for length in range(16, state_at):
        with pytest.raises(InvalidRequest):
            foreign(content[:length])
    for length in range(state_at, len(content)):
        assert foreign(content[:length]) == ([7, 8, 9], PREFIX + content[state_at:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<III", 0x67677371, 2, 3) + bytes(40), "its state has the version 2"),
        (THEIRS.replace(struct.pack("<iII", -1, 1, 3), struct.pack("<iII", -1, 2, 3)), "not written as llama-server"),
        (THEIRS.replace(struct.pack("<iI", 9, 0), struct.pack("<iI", 9, 1)), "its media are cut off"),
        (OLDER.replace(struct.pack("<i", 9), struct.pack("<i", 100)), "outside the model's vocabulary"),
    ],
)
def test_a_foreign_file_that_cant_be_used_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        foreign(content)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    assert refusal(WHOLE, n_vocab=9) == "it has tokens outside the model's vocabulary"


def forged(description: dict[str, object], without: Sequence[str] = ()) -> bytes:
    """A file with these values in its description, and without those; its hashes fit."""
    at = WHOLE.index(b'{"')
    written, _ = json.JSONDecoder().raw_decode(WHOLE[at:].decode(errors="replace"))
    text = json.dumps({name: value for name, value in (written | description).items() if name not in without}).encode()
    end = text + struct.pack("<8sIIQ", b"LLPSLOT\0", 1, len(text), at)
    return WHOLE[:at] + end + hashlib.blake2b(end, digest_size=32).digest()


@pytest.mark.parametrize("later", [("checkpoints", "media", "scope"), ("media", "scope"), ("scope",)])
def test_what_an_older_version_saved_is_read(later: tuple[str, ...]) -> None:
    """The first one, and those before media and scopes, wrote all but these."""
    assert read(forged({}, without=later)) == read(WHOLE)


def test_a_description_with_other_fields_is_refused() -> None:
    assert "description cannot be read" in refusal(forged({"surprise": 1}))


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": []},
        {"origin": None},
        {"lora": [[[], 1.0]]},
        {"lora": [["lora", "1"]]},
        {"lora_for_all": [["lora", float("nan")]]},
        {"lora_start": "3"},
        {"lora_start": -1},
        {"n_exact": {}},
        {"n_exact": -1},
        {"n_exact": True},
        {"n_tokens": 3.0},
    ],
)
def test_a_description_of_other_types_is_refused(changed: dict[str, object]) -> None:
    assert refusal(forged(changed)).startswith("its description cannot be read: ")


def test_a_state_of_another_form_is_not_saved() -> None:
    with pytest.raises(InternalError):
        b"".join(encode(SlotState([], b"something else", NO_ADAPTERS, 0), DESCRIPTION))
