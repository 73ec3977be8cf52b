"""Guesses that are taken or not by chance, whatever the model says: what a draft of so good a quality would be worth.

For benchmarks alone: the text is not the model's (llama.cpp tools/server/server-context.cpp,
server_sample_and_accept_synth; common/speculative.cpp, common_speculative_synth_rates_resolve).
"""

from collections.abc import Sequence

_HALVINGS = 32


def rates_of_length(length: float, most: int) -> tuple[float, ...]:
    """How often each of `most` guesses is taken, when a step gives `length` tokens in the mean, its own one included.

    Each with the same chance as the one before it. `length` is at least 1 and at most ``most + 1``.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**n for n in range(1, most + 1)) < length - 1:
            low = middle
        else:
            high = middle
    chance = 1.0 if length >= most + 1 else 0.0 if length <= 1 else (low + high) / 2
    return tuple(chance**n for n in range(1, most + 1))


def conditional(rates: Sequence[float]) -> tuple[float, ...]:
    """How likely each guess is taken once the one before it was; `rates` never rise."""
    before = (1.0, *rates)
    return tuple(rate / given if given > 0 else 0.0 for given, rate in zip(before, rates, strict=False))
