"""Questions outside the model's scope: it says that it doesn't know."""

from random import Random

from . import words
from .facts import dressed
from .sample import Sample, Split, exchange, phrase

_ASKS = (
    "Who won the {0} cup in {1}?",
    "What is the capital of {0}?",
    "Who is the president of {0}?",
    "When was {0} born?",
    "Who wrote {0}?",
    "What is the price of {0}?",
    "Explain the theory of {0}.",
    "What happened in {1}?",
    "Who is {0}?",
    "What is {0}?",
    "How tall is {0}?",
    "How far is it from {0} to {2}?",
    "What is the population of {0}?",
    "Who invented the {0} engine?",
    "Write an essay about {0}.",
    "What is the chemical formula of {0}?",
    "Who discovered {0}?",
    "What is {1} times {3}?",
    "What is the square root of {1}?",
    "What will the weather be in {2}?",
    "What is the news from {2}?",
    "Which film won in {1}?",
    "How many people live in {2}?",
    "Who is the mayor of {2}?",
    "What did {0} say about {2}?",
    "Which team plays in {2}?",
    "Where is {0}?",
    "Do you know {0}?",
    "Tell me about {0}.",
    "How do I cook {0}?",
    "Translate {0} into Latin.",
    "When did the {0} war begin?",
    "How deep is the lake of {0}?",
    "Which language do they speak in {0}?",
    "What colour is {0}?",
    "What is the opposite of {0}?",
    "Where does {0} live?",
    "How many moons does {0} have?",
)


_WHO = (  # for training alone: `who` is not always about the model
    "Who made the {0} machine?",
    "Who built the {0} tower?",
    "Who wrote the book {0}?",
    "Who painted {0}?",
    "Who won the {0} cup?",
    "Who was the first king of {0}?",
    "Who designed the {0} car?",
    "Who founded {0}?",
    "Who sings {0}?",
    "Who owns the {0} company?",
    "Who came up with {0}?",
    "Who opened the {0} museum in {1}?",
    "Can you write a poem on {0}?",
    "Write a letter to {0}.",
    "Do you remember {0}?",
    "Have you heard of {0}?",
)


def unknown(rng: Random, split: Split) -> Sample:
    """A question that nothing in the corpus answers."""
    values = words.made_up(rng), rng.randint(1000, 2100), rng.choice(words.CITIES), rng.randint(100, 999)
    asked = rng.choice(_WHO) if split == "train" and rng.random() < 0.4 else phrase(rng, split, _ASKS)
    question = dressed(rng, asked.format(*values))
    return exchange("unknown", question, "I am sorry, I don't know that.", "I do not know this.", ["don't know"])
