"""What a context shift keeps and drops (llama-server's ``--context-shift``, ``n_keep``, ``n_discard``). Pure."""

from server.engine.sequence import Sequence

_MARGIN = 4  # cells that a shift leaves free at least, as the reference


def span(sequence: Sequence, n_ctx: int, *, add_bos: bool) -> tuple[int, int]:
    """(tokens kept at the beginning, tokens dropped behind them); server-context.cpp, update_slots."""
    request = sequence.request
    keep = len(request.prompt) if request.n_keep < 0 else request.n_keep
    keep = min(n_ctx - _MARGIN, keep + add_bos)
    left = sequence.n_computed - keep
    discard = request.n_discard or left // 2
    return keep, max(1, min(discard, left - 1))
