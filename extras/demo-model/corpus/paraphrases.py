"""Questions by meaning: what the corpus answers with the same words, it asks with the same meaning."""

from collections import defaultdict
from functools import partial
from random import Random

from .chitchat import small_talk
from .facts import fact
from .llamapool import llamapool
from .sample import NothingHeldOut, Split


def by_meaning(seed: int, split: Split, n_samples: int) -> dict[str, list[str]]:
    """Each answer's questions, at least two, in the phrasings of one side of the split."""
    rng = Random(seed)
    found: dict[str, set[str]] = defaultdict(set)
    makers = (partial(fact, rng, split), partial(small_talk, rng, split), partial(llamapool, rng, split))
    for _ in range(n_samples):
        try:
            sample = rng.choices(makers, (6, 2, 2))[0]()
        except NothingHeldOut:
            continue
        found[sample.turns[-1].text].add(sample.turns[0].text)
    return {answer: sorted(questions) for answer, questions in sorted(found.items()) if len(questions) > 1}


def held_out_pairs(seed: int, n_pairs: int) -> list[tuple[str, str]]:
    """Pairs of one meaning each: a question as in training, and a phrasing that is in none."""
    rng = Random(seed)
    known, unseen = by_meaning(seed, "train", 60_000), by_meaning(seed, "test", 60_000)
    answers = rng.sample(sorted(known.keys() & unseen.keys()), n_pairs)
    return [(rng.choice(known[answer]), rng.choice(unseen[answer])) for answer in answers]
