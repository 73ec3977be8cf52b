"""Media in saved slots: written as llama-server writes them, and read only where nothing contradicts."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NEVER, NO_ADAPTERS
from server.engine.media import MediaSpan, Spans, media_tokens
from server.engine.prefix_cache import SlotState
from server.errors import InvalidRequest
from server.pool.saved.format import DATA_PREFIX, Description, encode, open_saved, read_foreign, read_record

PREFIX = DATA_PREFIX + bytes(4)
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
    saved = SlotState(tokens, PREFIX + b"state", NO_ADAPTERS, NEVER, media=media)
    content = b"".join(encode(saved, Description({}, (), None, (), len(tokens), None, media="m")))
    opened = open_saved(io.BytesIO(content), len(content))
    assert opened.read(100, NO_ADAPTERS, states=False) == saved.without_bytes
    assert opened.read(100, NO_ADAPTERS) == saved
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
