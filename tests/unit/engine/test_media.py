"""Media spans: the tokens that represent them, positions after them, and truncation that never splits one."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.media import (
    MediaSpan,
    Spans,
    below,
    check_spans,
    last_position,
    media_tokens,
    n_up_to,
    position,
    whole,
)


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], list[int], Spans]:
    """Draw a text with media: its tokens, the position of each, and the spans."""
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[MediaSpan] = []
    at = 0
    for i, n_text in enumerate(draw(st.lists(st.integers(0, 5), max_size=5))):
        tokens += range(n_text)
        positions += range(at, at + n_text)
        at += n_text
        n, linear = draw(st.integers(1, 9)), draw(st.booleans())
        n_pos = n if linear else draw(st.integers(1, n))
        spans.append(MediaSpan(len(tokens), n, n_pos, linear, f"medium {i}", i % 3))
        tokens += media_tokens(f"medium {i}", i % 3, n)
        positions += range(at, at + n) if linear else [at] * n
        at += n_pos
    n_text = draw(st.integers(1, 5))
    return tokens + list(range(n_text)), positions + list(range(at, at + n_text)), tuple(spans)


@given(texts())
def test_positions_equal_those_counted_token_by_token(text: tuple[list[int], list[int], Spans]) -> None:
    tokens, positions, spans = text
    check_spans(spans, tokens)
    for n in range(len(tokens)):
        if whole(spans, n) == n:
            assert position(spans, n) == positions[n]
        assert last_position(spans, n + 1) == positions[n] == max(positions[: n + 1])
    assert last_position(spans, 0) == -1


@given(texts(), st.integers(0, 60))
def test_truncation_never_splits_a_medium(text: tuple[list[int], list[int], Spans], n: int) -> None:
    tokens, _, spans = text
    n = min(n, len(tokens))
    n_left = whole(spans, n)
    assert 0 <= n - n_left < max([span.n_tokens for span in spans], default=1)
    check_spans(below(spans, n_left), tokens[:n_left])
    assert all(span.end <= n_left for span in below(spans, n_left))
    smallest = n_up_to(spans, n)
    assert whole(spans, smallest) == smallest
    assert position(spans, smallest) >= n
    assert all(position(spans, fewer) < n for fewer in range(smallest) if whole(spans, fewer) == fewer)
