"""Masks to token ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InternalError
from server.llama.sampling.candidates import allowed_tokens


@given(st.sets(st.integers(0, 2047), min_size=1), st.integers(0, 40))
def test_the_ids_are_those_of_the_set_bits_few_or_many(tokens: set[int], n_past_the_end: int) -> None:
    n_vocab = 2048 - n_past_the_end
    bits = np.zeros(2048, np.uint8)
    bits[list(tokens)] = 1
    mask = np.packbits(bits, bitorder="little").tobytes()
    expected = sorted(token for token in tokens if token < n_vocab)
    if expected:
        assert allowed_tokens(mask, n_vocab).tolist() == expected
    else:
        with pytest.raises(InternalError, match="allows no token"):
            allowed_tokens(mask, n_vocab)
