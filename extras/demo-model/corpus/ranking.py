"""Queries with documents, of which one is relevant: the answer to the question, or the question in other words."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .paraphrases import by_meaning
from .sample import Split

N_NEAR = 24


@dataclass(frozen=True)
class Ranking:
    """A query and its documents; the first is the relevant one."""

    query: str
    documents: tuple[str, ...]


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


class Rankings:
    """Rankings of one side of the split: the queries are its phrasings, as is a paraphrase that is a document."""

    def __init__(self, seed: int, split: Split, n_samples: int) -> None:
        self.questions = by_meaning(seed, split, n_samples)
        self.answers = sorted(self.questions)
        bags = {answer: frozenset(answer.lower().rstrip(".!?").split()) for answer in self.answers}
        self.near: dict[str, Sequence[str]] = {}
        for answer in self.answers:
            others = (other for other in self.answers if other != answer)
            by_likeness = sorted(others, key=lambda other, a=answer: -_likeness(bags[a], bags[other]))  # type: ignore[misc]
            self.near[answer] = by_likeness[:N_NEAR]

    def draw(self, rng: Random, n_documents: int) -> Ranking:
        """One ranking; half of the others are those most like the relevant one, in the words of their answers."""
        answer = rng.choice(self.answers)
        query, paraphrase = rng.sample(self.questions[answer], 2)
        n_near = n_documents // 2
        others = [*rng.sample(self.near[answer], n_near)]
        while len(others) < n_documents - 1:
            other = rng.choice(self.answers)
            if other != answer and other not in others:
                others.append(other)
        if rng.random() < 0.5:
            return Ranking(query, (answer, *others))
        return Ranking(query, (paraphrase, *(rng.choice(self.questions[other]) for other in others)))
