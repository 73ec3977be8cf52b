"""llama-server's n-gram types: the sizes differ, the lookup is the same."""

import pytest

from server.engine.params import EngineParams
from server.engine.speculate.lookup import lookups

KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
RUN = list(range(10, 90))


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_drafts_what_followed_its_n_gram_up_to_its_longest_draft(kind: str) -> None:
    params = EngineParams(spec_type=kind)
    size, longest = params.ngram_sizes[kind]
    assert params.n_draft_max == longest
    (lookup,) = lookups(params)(256)
    lookup.extend([*RUN, 1, 2, *RUN[: size - 1]])
    assert lookup.propose(99) == []
    lookup.add(RUN[size - 1])
    following = [*RUN, 1, 2, *RUN[:size]][size:]
    assert lookup.propose(99) == following[:longest]
