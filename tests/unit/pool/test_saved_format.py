"""The file format of saved slots: round trips, damaged files, files of llama-server, and records of media."""

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
ENTRY = CacheEntry([7, 8, 9], AdapterSet(((0, 0.5),), 3), 2, state=PREFIX + b"state of the library")
SAVED = b"".join(encode(ENTRY, DESCRIPTION))


def read(content: bytes, n_vocab: int = 100) -> tuple[Description, list[int], bytes]:
    """Return the description without its hash, the tokens and the state of a file."""
    opened = open_saved(io.BytesIO(content), len(content))
    saved = opened.read(n_vocab, NO_ADAPTERS)
    assert not saved.media
    assert tuple((n, len(state)) for n, state in saved.checkpoints.items()) == opened.description.checkpoints
    assert astuple(opened.read(n_vocab, NO_ADAPTERS, states=False)) == astuple(saved.in_file("", 0))
    return replace(opened.description, blake2b=""), saved.tokens, saved.state


def refusal(content: bytes, n_vocab: int = 100) -> str:
    """Return the message of the error that a file is refused with."""
    with pytest.raises(InvalidRequest) as caught:
        read(content, n_vocab)
    return caught.value.message


@given(
    tokens=st.lists(st.integers(0, 99), max_size=300),
    state=st.binary(max_size=300),
    scales=st.lists(st.tuples(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)), max_size=3),
    exact=st.none() | st.integers(0, 300),
)
def test_saved_slot_is_read_unchanged(
    tokens: list[int], state: bytes, scales: list[tuple[str, float]], exact: int | None
) -> None:
    description = Description({"model": "m"}, tuple(scales), None, tuple(scales), len(tokens), exact, (), "", "")
    content = b"".join(encode(CacheEntry(tokens, NO_ADAPTERS, 0, state=PREFIX + state), description))
    assert read(content) == (description, tokens, PREFIX + state)


class LargeFile(io.BytesIO):
    """Refuse `read` of large parts, whose result would be copied once more; `readinto` returns few bytes at a time."""

    def read(self, n: int | None = -1) -> bytes:
        assert n is not None
        assert 0 <= n < 10_000, f"{n} bytes were read with an additional copy"
        return super().read(n)

    def readinto(self, target: Any) -> int:
        return super().readinto(memoryview(target)[:7000])


def test_states_are_read_without_an_additional_copy() -> None:
    state = PREFIX + bytes(range(256)) * 200
    checkpoints = {1: b"c" * 20_000, 2: b""}
    saved = CacheEntry([7, 8, 9], NO_ADAPTERS, 2, checkpoints, state=state)
    sizes = tuple((n, len(state)) for n, state in checkpoints.items())
    content = b"".join(encode(saved, replace(DESCRIPTION, checkpoints=sizes)))
    assert astuple(open_saved(LargeFile(content), len(content)).read(100, NO_ADAPTERS)) == astuple(saved)


def test_saved_slot_starts_like_a_file_of_llama_server() -> None:
    packed = struct.pack("<iII3iI", -1, 1, 3, 7, 8, 9, 0)
    expected = struct.pack("<III", 0x67677371, 3, len(packed) // 4) + packed + b"state of the library"
    assert SAVED.startswith(expected + b'{"')


@pytest.mark.parametrize("bits", [0xFF, 0x01])
def test_changed_byte_at_any_position_is_refused(bits: int) -> None:
    for at in range(len(SAVED)):
        changed = bytearray(SAVED)
        changed[at] ^= bits
        refusal(bytes(changed))


def test_file_truncated_at_any_length_is_refused() -> None:
    messages = {refusal(SAVED[:length]) for length in range(len(SAVED))}
    assert messages == {
        "it is no saved slot",  # shorter than the magic number
        "it is truncated: Llamapool's part at its end is missing",
    }


@given(st.integers(0, len(SAVED) - 1), st.binary(min_size=1, max_size=8))
def test_inserted_bytes_are_refused(at: int, more: bytes) -> None:
    refusal(SAVED[:at] + more + SAVED[at:])


FOREIGN = SAVED[: SAVED.index(b'{"')]
"""A file as llama-server writes it."""
OLD_FOREIGN = struct.pack("<III3i", 0x67677371, 3, 3, 7, 8, 9) + b"state of the library"
"""A file of an older llama-server, which wrote tokens as a plain list."""


def read_foreign_text(content: bytes, n_vocab: int = 100) -> tuple[list[int], bytes] | None:
    """Return the tokens and the state of a file without media."""
    found = read_foreign(io.BytesIO(content), len(content), n_vocab)
    if found is None:
        return None
    (tokens, media), state = found
    assert not media
    return tokens, state


@pytest.mark.parametrize("content", [FOREIGN, OLD_FOREIGN, OLD_FOREIGN + SAVED[len(FOREIGN) :]])
def test_file_of_llama_server_is_read(content: bytes) -> None:
    """The last is a file of Llamapool whose tokens were replaced by a plain list, as llama.cpp's tests do."""
    assert read_foreign_text(content) == ([7, 8, 9], PREFIX + b"state of the library")


def test_file_of_llama_server_counts_as_computed_with_the_default_lora_set(tmp_path: Path) -> None:
    """It was reused by requests for the base model, and not by those for the default set."""
    (tmp_path / "foreign").write_bytes(FOREIGN)
    engine, vocab = SimpleNamespace(adapters=(Adapter(0, "lora.gguf", 0.5),)), SimpleNamespace(n_tokens=100)
    model = cast(LoadedModel, SimpleNamespace(engine=engine, vocab=vocab, media=None))
    saved, _ = slots._read(model, SlotFiles(tmp_path), "foreign")
    assert (saved.tokens, saved.adapter_set) == ([7, 8, 9], AdapterSet(((0, 0.5),), 0))


def test_files_of_llamapool_and_other_files_are_not_foreign() -> None:
    assert read_foreign_text(SAVED) is None
    assert read_foreign_text(b"another file that is longer than the header") is None
    assert read_foreign_text(FOREIGN[:8]) is None


@pytest.mark.parametrize("content", [FOREIGN, OLD_FOREIGN])
def test_truncated_foreign_file_is_refused_or_has_a_shorter_state(content: bytes) -> None:
    """llama.cpp itself refuses a state that is too short."""
    state_at = len(content) - len("state of the library")
    for length in range(16, state_at):
        with pytest.raises(InvalidRequest):
            read_foreign_text(content[:length])
    for length in range(state_at, len(content)):
        assert read_foreign_text(content[:length]) == ([7, 8, 9], PREFIX + content[state_at:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<III", 0x67677371, 2, 3) + bytes(40), "its state has the version 2"),
        (FOREIGN.replace(struct.pack("<iII", -1, 1, 3), struct.pack("<iII", -1, 2, 3)), "not written as llama-server"),
        (FOREIGN.replace(struct.pack("<iI", 9, 0), struct.pack("<iI", 9, 1)), "its media are truncated"),
        (OLD_FOREIGN.replace(struct.pack("<i", 9), struct.pack("<i", 100)), "outside the model's vocabulary"),
    ],
)
def test_unusable_foreign_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_foreign_text(content)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    assert refusal(SAVED, n_vocab=9) == "it has tokens outside the model's vocabulary"


def with_description(description: dict[str, object], without: str = "") -> bytes:
    """Return a file with these values in its description, without the field `without`, and with valid hashes."""
    at = SAVED.index(b'{"')
    written, _ = json.JSONDecoder().raw_decode(SAVED[at:].decode(errors="replace"))
    text = json.dumps({name: value for name, value in (written | description).items() if name != without}).encode()
    end = text + struct.pack("<8sIIQ", b"LLPSLOT\0", 1, len(text), at)
    return SAVED[:at] + end + hashlib.blake2b(end, digest_size=32).digest()


@pytest.mark.parametrize("missing", ["n_tokens", "checkpoints", "scope", "media"])
def test_description_with_a_missing_field_is_refused(missing: str) -> None:
    assert refusal(with_description({}, missing)).startswith("its description cannot be read: ")


@pytest.mark.parametrize(
    "changed",
    [
        {"unknown": 1},
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
def test_description_with_an_unknown_field_or_an_invalid_value_is_refused(changed: dict[str, object]) -> None:
    assert refusal(with_description(changed)).startswith("its description cannot be read: ")


def test_state_without_the_prefix_of_the_library_is_not_saved() -> None:
    with pytest.raises(InternalError):
        b"".join(encode(CacheEntry([], NO_ADAPTERS, 0, state=b"something else"), DESCRIPTION))


NORMAL, MROPE, HUNYUAN = 0, 1, 2


def _batch(n_entries: int, *, audio: bool) -> bytes:
    return struct.pack("<BQ", audio, n_entries) + struct.pack("<BBiii", 0, 0, 0, 64, 64) * n_entries


def image(id_: str, nx: int, ny: int, positions: int = NORMAL, n_entries: int = 1, n_merged: int = 1) -> bytes:
    """Return the record of an image as libmtmd writes it."""
    name = id_.encode()
    head = struct.pack("<QIQB5I", 2, 1, 0, 1, nx, ny, positions, 0, n_merged)
    return head + struct.pack("<Q", len(name)) + name + _batch(n_entries, audio=False) + b"\0"


def audio(id_: str, n_tokens: int) -> bytes:
    """Return the record of audio as libmtmd writes it."""
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
def test_record_of_a_medium_has_its_tokens_and_positions(
    record: bytes, n_tokens: int, n_pos: int, *, linear: bool
) -> None:
    assert read_record(record, 7, {"a": 1}) == MediaSpan(7, n_tokens, n_pos, linear, "a", 2, record)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        struct.pack("<QIQ", 3, 1, 0) + image("a", 2, 2)[20:],  # another version
        struct.pack("<QIQ", 2, 1, 9) + image("a", 2, 2)[20:],  # a medium with text tokens
        struct.pack("<QIQ", 2, 2, 0) + image("a", 2, 2)[20:],  # an image of type audio
        struct.pack("<QIQ", 2, 1, 0) + audio("a", 2)[20:],  # audio of type image
        image("a", 0, 2),
        image("a", 1 << 31, 1 << 31),
        image("a", 2, 2, positions=3),
        audio("a", 0),
        image("a", 2, 2) + b"\0",
    ],
)
def test_invalid_record_of_a_medium_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_record(record, 0, {})


@given(st.sampled_from([image("abc", 3, 4), audio("abc", 9)]), st.data())
def test_corrupt_record_is_refused_or_has_positive_sizes(record: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record) - 1))
    changed = record[:at] + data.draw(st.binary(max_size=9)) + record[at + data.draw(st.integers(0, 9)) :]
    try:
        span = read_record(changed, 0, {})
    except InvalidRequest:
        return
    assert span.n_tokens > 0
    assert span.n_pos > 0


@st.composite
def tokens_with_media(draw: st.DrawFn) -> tuple[list[int], Spans]:
    tokens: list[int] = []
    spans: list[MediaSpan] = []
    nth: dict[str, int] = {}
    for _ in range(draw(st.integers(0, 4))):
        tokens += draw(st.lists(st.integers(0, 99), max_size=5))
        id_ = draw(st.sampled_from(["a", "b"]))
        records = [image(id_, 4, 1), image(id_, 2, 3, MROPE), audio(id_, 5)]
        spans.append(read_record(draw(st.sampled_from(records)), len(tokens), nth))
        tokens += media_tokens(id_, spans[-1].nth, spans[-1].n_tokens)
    return tokens + draw(st.lists(st.integers(0, 99), max_size=5)), tuple(spans)


@given(tokens_with_media())
def test_saved_tokens_with_media_are_read_unchanged(text: tuple[list[int], Spans]) -> None:
    tokens, media = text
    saved = CacheEntry(tokens, media=media, state=PREFIX + b"state")
    content = b"".join(encode(saved, Description({}, (), None, (), len(tokens), None, (), "", "m")))
    opened = open_saved(io.BytesIO(content), len(content))
    assert astuple(opened.read(100, NO_ADAPTERS, states=False)) == astuple(saved.in_file("", 0))
    assert astuple(opened.read(100, NO_ADAPTERS)) == astuple(saved)
    foreign = content[: content.index(b'{"')]
    assert read_foreign(io.BytesIO(foreign), len(foreign), 100) == (text, PREFIX + b"state")


def foreign_file(tokens: list[int], records: list[tuple[int, bytes]]) -> bytes:
    """Return a file as llama-server writes it, with an empty state, even if tokens and records are inconsistent."""
    packed = struct.pack(f"<iII{len(tokens)}iI", -1, 1, len(tokens), *tokens, len(records))
    packed += struct.pack(f"<{len(records)}I", *(at for at, _ in records))
    packed += b"".join(struct.pack("<I", len(record)) + record for _, record in records)
    packed += bytes(-len(packed) % 4)
    return struct.pack("<III", 0x67677371, 3, len(packed) // 4) + packed


@pytest.mark.parametrize(
    "content",
    [
        foreign_file([1, -1, -1, 2], []),  # media without a record
        foreign_file([1, 1, 1, 1], [(0, image("a", 4, 1))]),  # a record without media
        foreign_file([-1] * 4, [(1, image("a", 4, 1))]),  # a record at another position
        foreign_file([-1] * 6, [(0, image("a", 4, 1)), (2, image("a", 4, 1))]),  # overlapping records
        foreign_file([-2, 1], []),  # a negative token
        foreign_file([-1] * 4, [(0, image("a", 4, 1))])[:-8],  # a truncated record
    ],
)
def test_foreign_file_with_inconsistent_media_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_foreign(io.BytesIO(content), len(content), 100)
