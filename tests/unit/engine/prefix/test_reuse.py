"""Runs of cached tokens at other positions, the indentation limit, and what a context shift keeps."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.engine.kv_store import shift_sizes
from server.engine.placement import Move, moves
from server.engine.prefix_cache import common_prefix
from server.engine.request import Request
from server.engine.sequence import Sequence, Slot, Ticket
from server.engine.text import TextStream

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_what_moves_is_in_the_cache_and_is_what_the_prompt_says(cached: list[int], prompt: list[int], n: int) -> None:
    prefix = common_prefix(cached, prompt)
    head, at = prefix, prefix
    for move in moves(cached, prompt, prefix, n):
        assert move.n >= n
        assert move.source >= head
        assert move.target == at
        assert cached[move.source : move.source + move.n] == prompt[at : at + move.n]
        head, at = move.source + move.n, at + move.n


def test_a_prompt_that_lost_its_beginning_keeps_the_rest() -> None:
    cached = [1, *range(100, 200)]
    prompt = [1, *range(130, 200), 7]
    (move,) = moves(cached, prompt, 1, 16)
    assert (move.source, move.target, move.n) == (31, 1, 70)


class _Counting(list[int]):
    """Counts the tokens that are copied out of it."""

    n_copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            self.n_copied += len(found)
        return found


def test_a_token_that_is_everywhere_does_not_make_the_search_quadratic() -> None:
    cached, prompt = _Counting([1, 2] * 2000), _Counting([1] + [3] * 4000)
    assert not moves(cached, prompt, 0, 8)
    assert cached.n_copied + prompt.n_copied < 16 * len(cached)


def test_runs_that_are_too_short_stay() -> None:
    assert not moves([1, 2, 3, 4, 5], [1, 4, 5], 1, 3)


def cut(n_indent: int, *texts: str) -> tuple[str, bool]:
    stream = TextStream(n_indent=n_indent)
    shown = ""
    for text in texts:
        part = stream.feed(0, text.encode(), None)
        shown += "" if part is None else part.text
        if stream.outdented:
            break
    return shown, stream.outdented


def test_the_first_line_may_have_any_indentation() -> None:
    assert cut(2, "def f():\n  return 1\n") == ("def f():\n  return 1\n", False)


def test_a_line_with_too_little_ends_the_text_before_its_first_letter() -> None:
    assert cut(2, "a\n  b\n c") == ("a\n  b\n ", True)
    assert cut(2, "a\n\tb") == ("a\n\t", True)
    assert cut(1, "a\n\nb") == ("a\n", True)


@given(st.text(" a\n", max_size=30), st.integers(1, 3), st.data())
def test_pieces_give_what_the_whole_gives(text: str, n_indent: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert cut(n_indent, text[:at], text[at:]) == cut(n_indent, text)


def running(n_prompt: int, n_computed: int, n_keep: int, n_discard: int) -> Sequence:
    request = Request("r", [1] * n_prompt, n_keep=n_keep, n_discard=n_discard)
    sequence = Sequence(Ticket(request, lambda events: None, 0.0), 0, request.prompt)
    sequence.slot = Slot(0, tokens=[1] * n_computed)
    return sequence


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
