"""Runs of cached tokens at other positions, the indentation limit, and what a context shift keeps."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.kv_store import shift_sizes
from server.engine.placement import Move, moves
from server.engine.prefix_cache import common_prefix
from server.engine.sequence import Sequence, Slot
from server.engine.text import TextStream
from tests.unit.engine.builders import sequence

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def cut(n_indent: int, *texts: str) -> tuple[str, bool]:
    stream = TextStream(n_indent=n_indent)
    shown = ""
    for text in texts:
        part = stream.feed(0, text.encode(), None)
        shown += "" if part is None else part.text
        if stream.outdented:
            break
    return shown, stream.outdented


def test_a_line_with_too_little_ends_the_text_before_its_first_letter() -> None:
    assert cut(2, "a\n  b\n c") == ("a\n  b\n ", True)
    assert cut(2, "a\n\tb") == ("a\n\t", True)
    assert cut(1, "a\n\nb") == ("a\n", True)


@given(st.text(" a\n", max_size=30), st.integers(1, 3), st.data())
def test_pieces_give_what_the_whole_gives(text: str, n_indent: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert cut(n_indent, text[:at], text[at:]) == cut(n_indent, text)


def running(n_prompt: int, n_computed: int, n_keep: int, n_discard: int) -> Sequence:
    return sequence([1] * n_prompt, slot=Slot(0, tokens=[1] * n_computed), n_keep=n_keep, n_discard=n_discard)


def test_half_of_what_follows_the_kept_beginning_is_dropped() -> None:
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=False) == (10, 44)
    assert shift_sizes(running(10, 99, 10, 0), 100, add_bos=True) == (11, 44)
    assert shift_sizes(running(10, 99, -1, 7), 100, add_bos=False) == (10, 7)


@given(st.integers(1, 98), st.integers(-1, 200), st.integers(0, 200), st.booleans())
def test_a_shift_always_makes_room_and_leaves_something(n_prompt: int, keep: int, discard: int, bos: bool) -> None:
    kept, dropped = shift_sizes(running(n_prompt, 99, keep, discard), 100, add_bos=bos)
    assert dropped >= 1
    assert kept + dropped < 99


def in_python(cached: list[int], prompt: list[int], prefix: int, smallest: int) -> list[Move]:
    """As llama-server's loop says it."""
    found: list[Move] = []
    head = at = prefix
    while head + smallest <= len(cached) and at + smallest <= len(prompt):
        if cached[head : head + smallest] == prompt[at : at + smallest]:
            n = common_prefix(cached[head:], prompt[at:])
            found.append(Move(head, at, n))
            head, at = head + n, at + n
        else:
            head += 1
    return found


@given(
    st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 24]), max_size=60),
    st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 24]), max_size=60),
    st.integers(1, 4),
)
def test_runs_are_those_that_the_reference_finds(cached: list[int], prompt: list[int], smallest: int) -> None:
    prefix = common_prefix(cached, prompt)
    assert moves(cached, prompt, prefix, smallest) == in_python(cached, prompt, prefix, smallest)
