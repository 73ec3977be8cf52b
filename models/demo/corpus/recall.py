"""Remembering what was said before."""

from random import Random

from . import words
from .chitchat import filler
from .facts import fact
from .sample import Sample, Split, Turn, after, exchange, fresh, phrase

# topic: (values or None for made-up words, statements, replies, questions, answer)
_TOPICS = {
    "name": (
        words.NAMES,
        ("My name is {0}.", "I am {0}.", "I'm {0}.", "Hi, I'm {0}.", "Hello, my name is {0}.", "Call me {0}."),
        "Nice to meet you, {0}!",
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "How am I called?",
         "Can you tell me my name?", "Say my name.", "Which name did I tell you?", "What was my name?"),
        "Your name is {0}.",
    ),
    "colour": (
        words.COLOURS,
        ("My favourite colour is {0}.", "The colour I like best is {0}.", "I like the colour {0} most.",
         "I love the colour {0}."),
        "{1} is a beautiful colour!",
        ("What is my favourite colour?", "What's my favourite colour?", "Which colour do I like best?",
         "Do you remember my favourite colour?", "Which colour do I like?", "What colour did I say I like?"),
        "Your favourite colour is {0}.",
    ),
    "food": (
        words.FOODS,
        ("My favourite food is {0}.", "The food I like best is {0}.", "I like {0} most of all food.",
         "I love to eat {0}."),
        "I hear that {0} tastes very good!",
        ("What is my favourite food?", "What's my favourite food?", "Which food do I like best?",
         "Do you remember my favourite food?", "What food do I like?", "What do I love to eat?"),
        "Your favourite food is {0}.",
    ),
    "pet": (
        words.NAMES,
        ("My dog is called {0}.", "I have a dog named {0}.", "My dog's name is {0}.", "The name of my dog is {0}."),
        "{0} is a good name for a dog!",
        ("What is my dog's name?", "What's the name of my dog?", "How is my dog called?", "What is my dog called?",
         "Do you remember my dog's name?", "What did I say my dog is called?"),
        "Your dog is called {0}.",
    ),
    "city": (
        words.CITIES,
        ("I live in {0}.", "My home is {0}.", "I am living in {0}.", "My home town is {0}."),
        "{0} must be a nice place!",
        ("Where do I live?", "In which city do I live?", "Do you remember where I live?", "What city do I live in?",
         "Where is my home?", "Which city do I live in?"),
        "You live in {0}.",
    ),
    "number": (
        None,
        ("My lucky number is {0}.", "Remember the number {0}.", "My number is {0}.", "The number to remember is {0}."),
        "I will remember {0}.",
        ("What is my number?", "What's my lucky number?", "Which number did I tell you?",
         "Do you remember the number?", "What was the number?", "What number did I say?"),
        "The number is {0}.",
    ),
    "word": (
        (),
        ("The secret word is {0}.", "Remember the word {0}.", "My password is {0}.", "Keep this word: {0}."),
        "I will remember {0}.",
        ("What is the secret word?", "What's the secret word?", "Which word did I tell you?",
         "Do you remember the word?", "What was the word?", "What word did I say?"),
        "The word is {0}.",
    ),
}  # fmt: skip


def _value(rng: Random, values: tuple[str, ...] | None) -> str:
    if values is None:
        return str(rng.randint(2, 999))
    if not values or (values in (words.NAMES, words.CITIES) and rng.random() < 0.5):
        return words.made_up(rng)
    return rng.choice(values)


def recall(rng: Random, split: Split) -> Sample:
    """Something is told; after up to two other exchanges it is asked for. At times a second thing is told too."""
    topics = rng.sample(list(_TOPICS), rng.choice((1, 1, 2)))
    history: list[Turn] = []
    told: dict[str, str] = {}
    for topic in topics:
        values, statements, reply, _, _ = _TOPICS[topic]
        told[topic] = fresh(rng, split, lambda r, v=values: _value(r, v))
        value = told[topic]
        history.append(Turn("user", phrase(rng, "train", statements).format(value)))
        history.append(Turn("assistant", reply.format(value, value.capitalize())))
        for _ in range(rng.choice((0, 1, 1) if len(topics) > 1 else (0, 1, 1, 2))):
            other = filler(rng, split) if rng.random() < 0.5 else fact(rng, split).turns
            if not any(f" {w}" in other[0].text for w in ("I am", "I'm", "name", "live", "My")):
                history += other
    topic = rng.choice(topics)
    _, _, _, questions, answer = _TOPICS[topic]
    value = told[topic]
    thought = f"The user told me before. It is {value}."
    last = exchange("recall", phrase(rng, split, questions), answer.format(value), thought, [rf"\b{value}\b"])
    return after(history, last)
