"""Children's stories: asked for, or begun and to be continued."""

from random import Random

from .plots import PLOTS, Cast
from .sample import Sample, Split, article, exchange, fresh, phrase
from .words import words_of

_HEROES = words_of("cat dog fox bear rabbit mouse owl duck frog pig lamb pony bee hen squirrel llama")
_NAMES = words_of("Pip Momo Tilly Bruno Luna Benny Daisy Coco Rufus Nelly Toby Poppy Lulu Max Fifi Oscar")
_ASKS = (
    "Tell me a story about {0}.",
    "Tell me a story about {0}, please.",
    "Write a story about {0}.",
    "Can you tell me a story about {0}?",
    "I want to hear a story about {0}.",
    "Tell a short story about {0}.",
    "Please tell me a bedtime story about {0}.",
    "Write a children's story about {0}.",
    "Do you know a story about {0}?",
    "Make up a story about {0}.",
)
_ANY = (
    "Tell me a story.",
    "Tell me a story",
    "Write a short story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Tell me a bedtime story.",
    "A story, please.",
    "Do you know a story?",
)
_CONTINUE = (
    "Continue this story: {0}",
    "Continue the story: {0}",
    "Go on with this story: {0}",
    "How does this story go on? {0}",
    "Finish this story: {0}",
    "Please continue: {0}",
)


def _cast(rng: Random) -> Cast:
    name, friend = rng.sample(_NAMES, 2)
    return rng.choice(_HEROES), name, rng.choice(_HEROES), friend


def is_whole(text: str) -> bool:
    """Whether a told story has no more than two characters and comes to an end."""
    n_named = sum(name in text for name in _NAMES)
    return 1 <= n_named <= 2 and text.rstrip().endswith(("The end.", "ever after."))


def story(rng: Random, split: Split) -> Sample:
    """A story on request, or the rest of one that was begun."""
    cast = fresh(rng, split, _cast)
    hero, name, _, _ = cast
    told = rng.choice(PLOTS)(rng, cast)
    thought = f"I will tell a story about {article(hero)}."
    kind = rng.random()
    if kind < 0.45:
        subject = article(hero) + rng.choice(("", f" called {name}", f" named {name}"))
        accept = [hero, name] if name in subject else [hero]
        return exchange("story", phrase(rng, split, _ASKS).format(subject), " ".join(told), thought, accept)
    if kind < 0.6:
        return exchange("story", phrase(rng, split, _ANY), " ".join(told), thought, ["Once upon a time"])
    begun = rng.randint(1, 7)
    question = phrase(rng, split, _CONTINUE).format(" ".join(told[:begun]))
    return exchange("story", question, " ".join(told[begun:]), "I will go on with the story.", [name])
