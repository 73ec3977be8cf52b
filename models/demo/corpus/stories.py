"""Children's stories, grown from a small grammar."""

from random import Random

from .sample import Sample, Split, article, exchange, fresh, phrase
from .words import words_of

_HEROES = words_of("cat dog fox bear rabbit mouse owl duck frog pig lamb pony bee hen squirrel llama")
_NAMES = words_of("Pip Momo Tilly Bruno Luna Benny Daisy Coco Rufus Nelly Toby Poppy Lulu Max Fifi Oscar")
_PLACES = ("in a green forest", "on a small farm", "by a blue lake", "in a quiet village", "on a high hill",
           "near a little river", "in a big garden", "at the edge of a meadow")  # fmt: skip
_KINDS = words_of("little small young brave kind clever happy curious")
_LOST = words_of(
    "red ball,golden key,blue hat,warm scarf,silver bell,toy boat,paper kite,picture book,shiny stone", ","
)
_WEATHER = ("The sun was shining and the birds were singing.", "It was a warm and sunny morning.",
            "The wind was soft and the sky was blue.", "There was snow on the ground and the air was cold.",
            "It had rained all night, and everything was wet.")  # fmt: skip
_SEARCH = ("under a big tree", "behind the house", "in the tall grass", "next to an old well", "between two stones",
           "under a wooden bridge", "near the garden gate", "inside a hollow log")  # fmt: skip
_TREATS = words_of("cake soup bread honey apples berries pancakes milk")
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


def _cast(rng: Random) -> tuple[str, str, str, str]:
    name, friend = rng.sample(_NAMES, 2)
    return rng.choice(_HEROES), name, rng.choice(_HEROES), friend


def _story(rng: Random, cast: tuple[str, str, str, str]) -> list[str]:
    hero, name, kind, friend = cast
    place, lost = rng.choice(_PLACES), rng.choice(_LOST)
    spots = rng.sample(_SEARCH, 3)
    treat = rng.choice(_TREATS)
    return [
        f"Once upon a time there was {article(rng.choice(_KINDS))} {hero} called {name}.",
        f"{name} lived {place}.",
        rng.choice((f"Every day {name} played with a {lost}.", f"{name} had a {lost} and loved it very much.")),
        f"One day {name} went for a walk.",
        rng.choice(_WEATHER),
        rng.choice((f"But then the {lost} was gone!", f"Suddenly {name} saw that the {lost} was not there.")),
        f"{name} was very sad and began to cry.",
        f"Then {article(kind)} came along. Its name was {friend}.",
        rng.choice((f'"Why are you crying?" asked {friend}.', f'"What is wrong?" asked {friend}.')),
        f'"I have lost my {lost}," said {name}.',
        rng.choice(('"Do not worry. I will help you," ', '"Then let us look for it together," ')) + f"said {friend}.",
        f"They looked {spots[0]}, but the {lost} was not there.",
        f"They looked {spots[1]}, but they found only an old shoe.",
        f"At last they looked {spots[2]}, and there was the {lost}!",
        f'"Thank you, {friend}!" said {name}. "You are a good friend."',
        f"They went home together and ate {treat}.",
        rng.choice((f"From that day on {name} and {friend} were best friends.",
                    f"{name} and {friend} played together every day after that.")),
        rng.choice(("The end.", "And they lived happily ever after.")),
    ]  # fmt: skip


def story(rng: Random, split: Split) -> Sample:
    """A story on request, or the rest of one that was begun."""
    cast = fresh(rng, split, _cast)
    hero, name, _, _ = cast
    told = _story(rng, cast)
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
