"""Remembering what was said before."""

from functools import partial
from random import Random

from . import words
from .chitchat import filler
from .facts import fact
from .sample import Sample, Split, Turn, after, exchange, fresh, phrase

# topic: (values or None for made-up words, statements, replies, questions, answer)
_TOPICS = {
    "name": (
        words.NAMES,
        ("My name is {0}.", "[I am|I'm] {0}[.|!]", "[Hi|Hello][,|!] [I'm|I am] {0}.", "[Hi|Hello], my name is {0}.",
         "[Call|You can call|Please call] me {0}.", "[People|Friends] call me {0}.", "My name's {0}."),
        "Nice to meet you, {0}!",
        ("What is my name?", "[What's|What was|Say|Tell me] my name[?|.| again?]",
         "Do you [remember|know|still know] [my name|who I am]?",
         "Who am I?", "[How|What] am I called?", "[Can|Could] you tell me my name?",
         "[Which|What] name did I [tell|give] you?", "What did I say my name is?", "Have you forgotten my name?",
         "[Please repeat|Repeat] my name.", "[Please tell|Tell] me who I am."),
        "Your name is {0}.",
    ),
    "colour": (
        words.COLOURS,
        ("My [favourite|favorite] [colour|color] is {0}.", "The colour I [like|love] [best|most] is {0}.",
         "I like the colour {0} [most|best].", "I love the colour {0}.", "{1} is my favourite colour."),
        "{1} is a beautiful colour!",
        ("What is my favourite colour?", "[What's|What was|Say|Tell me] my [favourite|favorite] [colour|color][?|.]",
         "[Which|What] colour do I [like|like best|love|like most|prefer]?",
         "Do you [remember|know|still know] [my favourite colour|which colour I like|what colour I like]?",
         "[What|Which] colour did I say I [like|love]?", "[Which|What] is the colour I [like|love][?| best?]"),
        "Your favourite colour is {0}.",
    ),
    "food": (
        words.FOODS,
        ("My [favourite|favorite] food is {0}.", "The food I [like|love] [best|most] is {0}.",
         "I like {0} most of all food.", "I love to eat {0}.", "{1} is my favourite food.", "I like to eat {0} most."),
        "I hear that {0} tastes very good!",
        ("What is my favourite food?", "[What's|What was|Say|Tell me] my [favourite|favorite] food[?|.]",
         "[Which|What] food do I [like|like best|love|like most|prefer]?",
         "Do you [remember|know|still know] [my favourite food|which food I like|what I like to eat|what I love to "
         "eat]?",
         "What do I [like|love|prefer] to eat[?| most?| best?]", "[What|Which] food did I say I [like|love]?",
         "What did I say I [like|love] to eat?", "[Which|What] is the food I [like|love][?| best?]"),
        "Your favourite food is {0}.",
    ),
    "pet": (
        words.NAMES,
        ("My dog is [called|named] {0}.", "I have a dog [named|called] {0}.", "My dog's name is {0}.",
         "The name of my dog is {0}.", "We have a dog [named|called] {0}."),
        "{0} is a good name for a dog!",
        ("What is my dog's name?", "[What's|What was|Tell me|Say] [the name of my dog|my dog's name][?|.]",
         "[How|What] is my dog called?",
         "Do you [remember|know|still know] [my dog's name|the name of my dog|what my dog is called]?",
         "What did I say my dog is called?", "What name does my dog have?", "What do I call my dog?",
         "[Which|What] name [has my dog|did I give my dog]?", "Who is my dog?"),
        "Your dog is called {0}.",
    ),
    "city": (
        words.CITIES,
        ("I live in {0}.", "My [home|city|home town] is {0}.", "I am living in {0}.",
         "I [have a house|am at home] in {0}.",
         "[We|My family and I] live in {0}."),
        "{0} must be a nice place!",
        ("Where do I live?", "In [which|what] [city|town|place] do I live?",
         "Do you [remember|know|still know] [where I live|my city|my home town|which city I live in]?",
         "[Which|What] [city|town|place] do I live in?", "[What|Where] is my [home|home town|city]?",
         "[Tell me|Say|Can you tell me] where I live.", "Where did I say I live?",
         "[Which|What] city did I say I live in?",
         "Where am I living?", "[What's|Tell me] my home town[?|.]"),
        "You live in {0}.",
    ),
    "number": (
        None,
        ("My lucky number is {0}.", "[Remember|Keep|Note] [the|this] number[:|] {0}.", "My number is {0}.",
         "The number [to remember |]is {0}.", "[Remember|Note] {0}.", "The secret number is {0}."),
        "I will remember {0}.",
        ("What is my number?",
         "[What's|What was|Tell me|Say] [the|my] [number|lucky number|secret number][?|.| again?]",
         "[Which|What] number did I [tell you|say|give you]?",
         "Do you [remember|know|still know] [the number|my number|my lucky number]?",
         "[Which|What] number should you remember?", "[Which|What] is [my|the] number?",
         "[Repeat|Please repeat] the number."),
        "The number is {0}.",
    ),
    "word": (
        (),
        ("The [secret|magic] word is {0}.", "[Remember|Note|Learn] the word {0}.", "My [password|secret word] is {0}.",
         "[Keep|Remember|Note] this word: {0}.", "The word [to remember |]is {0}."),
        "I will remember {0}.",
        ("What is the secret word?", "[What's|What was|Tell me|Say] [the|my] [word|secret word|password][?|.| again?]",
         "[Which|What] word did I [tell you|say|give you]?",
         "Do you [remember|know|still know] [the word|my password|the secret word]?",
         "[Which|What] word should you remember?", "[Which|What] is the [word|password]?",
         "[Repeat|Please repeat] the word."),
        "The word is {0}.",
    ),
}  # fmt: skip


def _value(rng: Random, values: tuple[str, ...] | None) -> str:
    if values is None:
        return str(rng.randint(2, 999))
    if not values or (values in (words.NAMES, words.CITIES) and rng.random() < 0.5):
        return words.made_up(rng)
    return rng.choice(values)


def _trained_value(rng: Random, values: tuple[str, ...] | None) -> str:
    """At times any word: who learns a list of eleven colours by heart need not look what was said."""
    if not values or rng.random() < 0.5:
        return _value(rng, values)
    if rng.random() < 0.5:
        return words.made_up(rng).lower()
    return rng.choice(rng.choice((words.THINGS, words.HOBBIES, words.PETS, words.JOBS, words.COLOURS, words.FOODS)))


def recall(rng: Random, split: Split) -> Sample:
    """Something is told; after up to two other exchanges it is asked for. At times a second thing is told too."""
    topics = rng.sample(list(_TOPICS), rng.choice((1, 1, 2)))
    history: list[Turn] = []
    told: dict[str, str] = {}
    for topic in topics:
        values, statements, reply, _, _ = _TOPICS[topic]
        draw = _trained_value if split == "train" else _value
        told[topic] = fresh(rng, split, partial(draw, values=values))
        value = told[topic]
        history.append(Turn("user", phrase(rng, "train", statements).format(value, value.capitalize())))
        history.append(Turn("assistant", reply.format(value, value.capitalize())))
        for _ in range(rng.choice((0, 1, 1) if len(topics) > 1 else (0, 1, 1, 2))):
            history += filler(rng, split) if rng.random() < 0.5 else fact(rng, split).turns
    topic = rng.choice(topics)
    if split == "train" and len(topics) > 1 and rng.random() < 0.6:  # the other one is asked for, too
        other = next(t for t in topics if t != topic)
        _, _, _, questions, answer = _TOPICS[other]
        history += [Turn("user", phrase(rng, split, questions)), Turn("assistant", answer.format(told[other]))]
    _, _, _, questions, answer = _TOPICS[topic]
    value = told[topic]
    thought = f"The user told me before. It is {value}."
    last = exchange("recall", phrase(rng, split, questions), answer.format(value), thought, [rf"\b{value}\b"])
    return after(history, last)
