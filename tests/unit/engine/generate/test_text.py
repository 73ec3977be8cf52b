"""Tokens to text: whole characters, no part of a stop string, nothing lost."""

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


def test_the_beginning_of_a_character_is_kept_for_its_end_and_shown_when_none_comes() -> None:
    stream = TextStream()
    shown = stream.feed(0, b"a\xc3", None)
    assert shown == Text(0, "a", (0,))
    assert stream.feed(1, b"b", None) == Text(0, "\ufffdb", (1,))
    assert stream.feed(2, b"\xe2\x9c", None) is None
    assert stream.feed(3, b"\x93c", None) == Text(0, "✓c", (2, 3))


def test_the_earliest_of_several_stops_wins_and_takes_its_tokens_along() -> None:
    stream = TextStream(("lo w", "wor"))
    parts = [stream.feed(i, p, TokenLogprob(i, p, 0.0)) for i, p in enumerate([b"hel", b"lo", b" world"])]
    assert stream.stopping_word == "lo w"
    tokens = [t for p in parts if p is not None for t in p.tokens]
    assert "".join(p.text for p in parts if p is not None) == "hel"
    assert tokens == [0]


@given(st.text(max_size=40), st.lists(st.text("ab✓", min_size=1, max_size=4), max_size=3), st.data())
def test_any_split_shows_the_text_up_to_the_first_stop(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stream = TextStream(tuple(stops))
    got = "".join(feed_all(stream, pieces))
    # Within one piece several stops may appear at once; token by token the first to be complete wins.
    if not any(s in text for s in stops):
        assert got == text
    else:
        assert stream.stopping_word in stops
        assert text.startswith(got + stream.stopping_word)
        assert not any(s in got for s in stops)


@given(st.text("abc", max_size=30), st.text("abc", min_size=2, max_size=5))
def test_no_shown_part_ends_inside_a_stop_that_follows(text: str, stop: str) -> None:
    stream = TextStream((stop,))
    shown = ""
    for i, char in enumerate(text):
        part = stream.feed(i, char.encode(), None)
        shown += part.text if part is not None else ""
        if stream.stopping_word:
            break
        seen = text[: i + 1]
        assert not any(stop.startswith(seen[at:]) for at in range(len(shown))), "a stop may begin in what was shown"
    assert stop not in shown


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
