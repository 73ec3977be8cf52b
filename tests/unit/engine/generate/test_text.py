"""`TextStream`: tokens become whole characters without any part of a stop string, and no other text is lost."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.request import Text, TokenLogprob
from server.engine.text import TextStream


def feed_all(stream: TextStream, pieces: list[bytes]) -> list[str]:
    shown = []
    for token, piece in enumerate(pieces):
        if stream.stopping_word:
            break
        part = stream.feed(token, piece, TokenLogprob(token, piece, -1.0))
        if part is not None:
            shown.append(part.text)
    rest = stream.finish()
    return [*shown, rest.text] if rest is not None else shown


def test_incomplete_character_is_held_until_it_is_complete_or_invalid() -> None:
    stream = TextStream()
    shown = stream.feed(0, b"a\xc3", None)
    assert shown == Text(0, "a", (0,))
    assert stream.feed(1, b"b", None) == Text(0, "\ufffdb", (1,))
    assert stream.feed(2, b"\xe2\x9c", None) is None
    assert stream.feed(3, b"\x93c", None) == Text(0, "✓c", (2, 3))


def test_earliest_stop_string_ends_the_text_and_its_tokens_are_not_shown() -> None:
    stream = TextStream(("lo w", "wor"))
    parts = [stream.feed(i, p, TokenLogprob(i, p, 0.0)) for i, p in enumerate([b"hel", b"lo", b" world"])]
    assert stream.stopping_word == "lo w"
    tokens = [t for p in parts if p is not None for t in p.tokens]
    assert "".join(p.text for p in parts if p is not None) == "hel"
    assert tokens == [0]


@given(st.text(max_size=40), st.lists(st.text("ab✓", min_size=1, max_size=4), max_size=3), st.data())
def test_every_split_ends_the_text_at_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    splits = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[a:b] for a, b in zip([0, *splits], [*splits, len(raw)], strict=True)]
    stream = TextStream(tuple(stops))
    shown = "".join(feed_all(stream, pieces))
    # a piece may complete several stop strings, so which of them ends the text depends on the split
    if not any(s in text for s in stops):
        assert shown == text
    else:
        assert stream.stopping_word in stops
        assert text.startswith(shown + stream.stopping_word)
        assert not any(s in shown for s in stops)


@given(st.text("abc", max_size=30), st.text("abc", min_size=2, max_size=5))
def test_exactly_the_possible_start_of_a_stop_string_is_held(text: str, stop: str) -> None:
    stream = TextStream((stop,))
    shown = ""
    for i, char in enumerate(text):
        part = stream.feed(i, char.encode(), None)
        shown += part.text if part is not None else ""
        if stream.stopping_word:
            break
        fed = text[: i + 1]
        assert len(shown) == len(fed) - max(n for n in range(len(stop)) if fed.endswith(stop[:n]))
    assert stop not in shown


def feed_indented(n_indent: int, *texts: str) -> tuple[str, bool]:
    """Return the shown text, and whether it ended at a line with less than `n_indent`."""
    stream = TextStream(n_indent=n_indent)
    shown = ""
    for text in texts:
        part = stream.feed(0, text.encode(), None)
        shown += "" if part is None else part.text
        if stream.outdented:
            break
    return shown, stream.outdented


def test_line_with_less_indentation_ends_the_text_before_its_first_letter() -> None:
    assert feed_indented(2, "a\n  b\n c") == ("a\n  b\n ", True)
    assert feed_indented(2, "a\n\tb") == ("a\n\t", True)
    assert feed_indented(1, "a\n\nb") == ("a\n", True)


@given(st.text(" a\n", max_size=30), st.integers(1, 3), st.data())
def test_outdent_is_found_for_every_split(text: str, n_indent: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert feed_indented(n_indent, text[:at], text[at:]) == feed_indented(n_indent, text)
