"""Conversations over one list of tools: several decisions for the price of one list. For training alone."""

import json
from random import Random

from . import words
from .chitchat import small_talk
from .facts import fact
from .sample import Sample, Split, Turn
from .toolkinds import Kind, Values
from .tools import NO_TOOL, Offer, asked, both, calculates, has_digit, kinds_of, offers_of

_POLITE = ("Hello! {0}", "Hi! {0}", "Now: {0}", "{0} Thank you.", "{0} Thanks.", "One more thing: {0}", "So: {0}")


def _asked(rng: Random, split: Split, kind: Kind) -> tuple[str, Values]:
    """As `asked`, at times about a word that begins with a vowel, which is the hardest to copy."""
    question, values = asked(rng, split, kind)
    if rng.random() < 0.15:
        for old in values:
            if isinstance(old, str) and old.isalpha() and question.count(old) == 1 and values.count(old) == 1:
                new = words.made_up_on_a_vowel(rng)
                new = new.capitalize() if old[0].isupper() else new
                question, values = question.replace(old, new), tuple(new if value == old else value for value in values)
    return question, values


def answered(rng: Random, asks: list[tuple[Offer, tuple[object, ...]]]) -> list[Turn]:
    """The tools' results, and the answer from them."""
    results = [one.kind.result(rng, values) for one, values in asks]
    turns = [Turn("tool", json.dumps(result, ensure_ascii=False)) for result, _ in results]
    thought = "The tool gave me the answer." if len(asks) == 1 else "The tools gave me the answers."
    return [*turns, Turn("assistant", " ".join(text for _, text in results), thought=thought)]


def _any_of(rng: Random, offers: list[Offer]) -> Offer:
    """One of the tools, those of two parameters twice as often: what goes where is the hardest."""
    return rng.choices(offers, [len(o.parameters) for o in offers])[0]


def _one(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    chosen = _any_of(rng, offers)
    question, values = _asked(rng, split, chosen.kind)
    if rng.random() < 0.15:
        question = rng.choice(_POLITE).format(question)
    call = Turn("assistant", calls=(chosen.call(values),), thought=f"The tool {chosen.name} fits.")
    rest = answered(rng, [(chosen, values)]) if rng.random() < 0.25 else []
    return [Turn("user", question), call, *rest]


def _two(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    first, second = _any_of(rng, offers), _any_of(rng, offers)
    (one, values), (two, others) = _asked(rng, split, first.kind), _asked(rng, split, second.kind)
    same = first is second and len(values) == 1 and values != others and str(values[0]) in one
    if same and rng.random() < 0.7:
        question = one.replace(str(values[0]), f"{values[0]} and {others[0]}", 1)
    else:
        question = both(rng, one, two)
    thought = f"I need two calls: {first.name} and {second.name}."
    calls = Turn("assistant", calls=(first.call(values), second.call(others)), thought=thought)
    rest = answered(rng, [(first, values), (second, others)]) if rng.random() < 0.15 else []
    return [Turn("user", question), calls, *rest]


def _none(rng: Random, split: Split, absent: list[Kind]) -> list[Turn]:
    question, _ = asked(rng, split, rng.choice(absent))
    if rng.random() < 0.15:
        question = rng.choice(_POLITE).format(question)
    return [Turn("user", question), Turn("assistant", NO_TOOL, thought="No tool fits.")]


def _plain(rng: Random, split: Split, offers: list[Offer]) -> list[Turn]:
    while True:
        sample = rng.choice((fact, small_talk))(rng, split)
        if not (has_digit(sample) and any(calculates(o.kind) for o in offers)):
            break
    said, answer = sample.turns
    return [said, Turn("assistant", answer.text, thought=f"No tool is needed. {answer.thought}")]


def tool_talk(rng: Random, split: Split) -> Sample:
    """Two to seven questions under the same tools: one call, two calls, none that fits, none needed."""
    n_offered = rng.choice((1, 2, 2, 3, 3, 4))
    kinds = kinds_of(rng, n_offered + 2)
    offers, absent = offers_of(rng, kinds[:n_offered]), kinds[n_offered:]
    listed = rng.sample(offers, n_offered)
    turns: list[Turn] = []
    for _ in range(rng.choice((2, 3, 4, 5, 6, 7))):
        way = rng.random()
        if way < 0.43:
            turns += _one(rng, split, offers)
        elif way < 0.71:
            turns += _two(rng, split, offers)
        elif way < 0.88:
            turns += _none(rng, split, absent)
        else:
            turns += _plain(rng, split, offers)
    return Sample("tool talk", tuple(turns), tools=tuple(o.described for o in listed))
