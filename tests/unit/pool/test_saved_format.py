"""The bytes of a saved slot and of the media in it: what was written is read again, and nothing else is."""

import hashlib
import io
import json
import struct
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import CacheEntry
from server.engine.lora import NO_ADAPTERS, Adapter, AdapterSet
from server.engine.media import MediaSpan, Spans, media_tokens
from server.errors import InternalError, InvalidRequest
from server.pool.model import LoadedModel
from server.pool.saved import slots
from server.pool.saved.format import DATA_PREFIX, Description, encode, open_saved, read_foreign, read_record
from server.pool.saved.store import SlotFiles

DESCRIPTION = Description({"model": "abc", "n_ctx": 256}, (("lora", 0.5),), 3, (), 3, 2, (), "", "")
PREFIX = DATA_PREFIX + bytes(4)
SAVED = CacheEntry([7, 8, 9], AdapterSet(((0, 0.5),), 3), 2, state=PREFIX + b"state of the library")
WHOLE = b"".join(encode(SAVED, DESCRIPTION))


def read(content: bytes, n_vocab: int = 100) -> tuple[Description, list[int], bytes]:
    opened = open_saved(io.BytesIO(content), len(content))
    saved = opened.read(n_vocab, NO_ADAPTERS)
    assert not saved.media
    assert tuple((n, len(state)) for n, state in saved.checkpoints.items()) == opened.description.checkpoints
    assert astuple(opened.read(n_vocab, NO_ADAPTERS, states=False)) == astuple(saved.in_file("", 0))
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
    description = Description({"model": "m"}, tuple(scales), None, tuple(scales), len(tokens), exact, (), "", "")
    content = b"".join(encode(CacheEntry(tokens, NO_ADAPTERS, 0, state=PREFIX + state), description))
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
    checkpoints = {1: b"c" * 20_000, 2: b""}
    saved = CacheEntry([7, 8, 9], NO_ADAPTERS, 2, checkpoints, state=state)
    sizes = tuple((n, len(state)) for n, state in checkpoints.items())
    content = b"".join(encode(saved, replace(DESCRIPTION, checkpoints=sizes)))
    assert astuple(open_saved(Large(content), len(content)).read(100, NO_ADAPTERS)) == astuple(saved)


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
    """The last is one of ours whose tokens another program has written as a plain list; llama.cpp's tests do so."""
    assert foreign(content) == ([7, 8, 9], PREFIX + b"state of the library")


def test_what_llama_server_itself_saved_counts_as_computed_by_the_default_lora_set(tmp_path: Path) -> None:
    """Requests for the base model reused it, and those for the default set did not."""
    (tmp_path / "theirs").write_bytes(THEIRS)
    engine, vocab = SimpleNamespace(adapters=(Adapter(0, "lora.gguf", 0.5),)), SimpleNamespace(n_tokens=100)
    model = cast(LoadedModel, SimpleNamespace(engine=engine, vocab=vocab, media=None))
    saved, _ = slots._read(model, SlotFiles(tmp_path), "theirs")
    assert (saved.tokens, saved.adapter_set) == ([7, 8, 9], AdapterSet(((0, 0.5),), 0))


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


def forged(description: dict[str, object], without: str = "") -> bytes:
    """A file with these values in its description, and without one; its hashes fit."""
    at = WHOLE.index(b'{"')
    written, _ = json.JSONDecoder().raw_decode(WHOLE[at:].decode(errors="replace"))
    text = json.dumps({name: value for name, value in (written | description).items() if name != without}).encode()
    end = text + struct.pack("<8sIIQ", b"LLPSLOT\0", 1, len(text), at)
    return WHOLE[:at] + end + hashlib.blake2b(end, digest_size=32).digest()


def test_a_description_with_other_fields_is_refused() -> None:
    assert "description cannot be read" in refusal(forged({"surprise": 1}))
    for missing in ("n_tokens", "checkpoints", "scope", "media"):
        assert "description cannot be read" in refusal(forged({}, missing))


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
        b"".join(encode(CacheEntry([], NO_ADAPTERS, 0, state=b"something else"), DESCRIPTION))


NORMAL, MROPE, HUNYUAN = 0, 1, 2


def _batch(n_entries: int, *, audio: bool) -> bytes:
    return struct.pack("<BQ", audio, n_entries) + struct.pack("<BBiii", 0, 0, 0, 64, 64) * n_entries


def image(id_: str, nx: int, ny: int, positions: int = NORMAL, n_entries: int = 1, n_merged: int = 1) -> bytes:
    name = id_.encode()
    head = struct.pack("<QIQB5I", 2, 1, 0, 1, nx, ny, positions, 0, n_merged)
    return head + struct.pack("<Q", len(name)) + name + _batch(n_entries, audio=False) + b"\0"


def audio(id_: str, n_tokens: int) -> bytes:
    name = id_.encode()
    head = struct.pack("<QIQBBI", 2, 2, 0, 0, 1, n_tokens)
    return head + struct.pack("<Q", len(name)) + name + _batch(1, audio=True)


@pytest.mark.parametrize(
    ("record", "n_tokens", "n_pos", "linear"),
    [
        (image("a", 16, 1), 16, 16, True),
        (image("a", 6, 5, MROPE), 30, 6, False),
        (image("a", 6, 5, MROPE, n_entries=2, n_merged=2), 30, 6, False),
        (image("a", 6, 5, MROPE, n_entries=3, n_merged=2), 60, 6, False),
        (image("a", 6, 5, HUNYUAN), 37, 37, True),
        (audio("a", 25), 25, 25, True),
    ],
)
def test_sizes_follow_from_what_the_library_wrote(record: bytes, n_tokens: int, n_pos: int, *, linear: bool) -> None:
    assert read_record(record, 7, {"a": 1}) == MediaSpan(7, n_tokens, n_pos, linear, "a", 2, record)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        struct.pack("<QIQ", 3, 1, 0) + image("a", 2, 2)[20:],  # another version
        struct.pack("<QIQ", 2, 1, 9) + image("a", 2, 2)[20:],  # text in a medium
        struct.pack("<QIQ", 2, 2, 0) + image("a", 2, 2)[20:],  # a picture that says it is a sound
        struct.pack("<QIQ", 2, 1, 0) + audio("a", 2)[20:],
        image("a", 0, 2),
        image("a", 1 << 31, 1 << 31),
        image("a", 2, 2, positions=3),
        audio("a", 0),
        image("a", 2, 2) + b"\0",
    ],
)
def test_what_cant_be_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_record(record, 0, {})


@given(st.sampled_from([image("abc", 3, 4), audio("abc", 9)]), st.data())
def test_no_change_of_bytes_ends_in_anything_but_a_refusal(record: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record) - 1))
    changed = record[:at] + data.draw(st.binary(max_size=9)) + record[at + data.draw(st.integers(0, 9)) :]
    try:
        span = read_record(changed, 0, {})
    except InvalidRequest:
        return
    assert span.n_tokens > 0
    assert span.n_pos > 0


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], Spans]:
    tokens: list[int] = []
    spans: list[MediaSpan] = []
    nth: dict[str, int] = {}
    for _ in range(draw(st.integers(0, 4))):
        tokens += draw(st.lists(st.integers(0, 99), max_size=5))
        id_ = draw(st.sampled_from(["a", "b"]))
        makers = [image(id_, 4, 1), image(id_, 2, 3, MROPE), audio(id_, 5)]
        spans.append(read_record(draw(st.sampled_from(makers)), len(tokens), nth))
        tokens += media_tokens(id_, spans[-1].nth, spans[-1].n_tokens)
    return tokens + draw(st.lists(st.integers(0, 99), max_size=5)), tuple(spans)


@given(texts())
def test_a_text_with_media_comes_back(text: tuple[list[int], Spans]) -> None:
    tokens, media = text
    saved = CacheEntry(tokens, media=media, state=PREFIX + b"state")
    content = b"".join(encode(saved, Description({}, (), None, (), len(tokens), None, (), "", "m")))
    opened = open_saved(io.BytesIO(content), len(content))
    assert astuple(opened.read(100, NO_ADAPTERS, states=False)) == astuple(saved.in_file("", 0))
    assert astuple(opened.read(100, NO_ADAPTERS)) == astuple(saved)
    theirs = content[: content.index(b'{"')]
    assert read_foreign(io.BytesIO(theirs), len(theirs), 100) == (text, PREFIX + b"state")


def words(tokens: list[int], records: list[tuple[int, bytes]]) -> bytes:
    """As llama-server packs them, whatever they say, with an empty state behind."""
    packed = struct.pack(f"<iII{len(tokens)}iI", -1, 1, len(tokens), *tokens, len(records))
    packed += struct.pack(f"<{len(records)}I", *(at for at, _ in records))
    packed += b"".join(struct.pack("<I", len(record)) + record for _, record in records)
    packed += bytes(-len(packed) % 4)
    return struct.pack("<III", 0x67677371, 3, len(packed) // 4) + packed


@pytest.mark.parametrize(
    "content",
    [
        words([1, -1, -1, 2], []),  # media without a description
        words([1, 1, 1, 1], [(0, image("a", 4, 1))]),  # a description without media
        words([-1] * 4, [(1, image("a", 4, 1))]),
        words([-1] * 6, [(0, image("a", 4, 1)), (2, image("a", 4, 1))]),
        words([-2, 1], []),
        words([-1] * 4, [(0, image("a", 4, 1))])[:-8],
    ],
)
def test_a_file_that_contradicts_itself_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_foreign(io.BytesIO(content), len(content), 100)
