"""What happens in the children's stories: each plot gives its sentences, from a cast (hero, name, friend, its name)."""

from collections.abc import Callable
from random import Random

from .sample import article
from .words import words_of

Cast = tuple[str, str, str, str]
Plot = Callable[[Random, Cast], list[str]]

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
_NOISES = (("a strange noise", "the wind in the leaves"), ("a loud knock", "a branch at the window"),
           ("a long howl", "the wind in the chimney"), ("soft steps", "a hedgehog on its way home"),
           ("a deep voice", "an old owl in the tree"))  # fmt: skip
_LIGHTS = words_of("lamp,candle,lantern,little light", ",")
_GOALS = ("the old mill", "the big oak", "the white fence", "the stone bridge", "the red barn")
_PRIZES = words_of("basket of apples,pot of honey,golden cup,big cake,blue ribbon", ",")
_SEEDS = words_of("bean sunflower pumpkin carrot strawberry apple")


def _end(rng: Random) -> str:
    return rng.choice(("The end.", "And they lived happily ever after."))


def _begin(rng: Random, cast: Cast) -> list[str]:
    hero, name, _, _ = cast
    return [
        f"Once upon a time there was {article(rng.choice(_KINDS))} {hero} called {name}.",
        f"{name} lived {rng.choice(_PLACES)}.",
    ]


def lost_and_found(rng: Random, cast: Cast) -> list[str]:
    """Something is gone, and found with a friend's help."""
    _, name, kind, friend = cast
    begun, lost = _begin(rng, cast), rng.choice(_LOST)
    spots = rng.sample(_SEARCH, 3)
    treat = rng.choice(_TREATS)
    return [
        *begun,
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
        _end(rng),
    ]  # fmt: skip


def afraid_of_the_dark(rng: Random, cast: Cast) -> list[str]:
    """A noise in the night is nothing bad."""
    _, name, kind, friend = cast
    (noise, cause), light = rng.choice(_NOISES), rng.choice(_LIGHTS)
    return [
        *_begin(rng, cast),
        f"{name} was afraid of the dark.",
        rng.choice((f"Every night {name} slept with a {light}.", f"At night {name} always wanted a {light}.")),
        f"One evening the {light} went out, and it was very dark.",
        f"Then {name} heard {noise}.",
        rng.choice((f'"Who is there?" called {name}.', f'"Help!" cried {name}.')),
        f"The door opened, and {article(kind)} called {friend} came in.",
        rng.choice((f'"Do not be afraid," said {friend}. "I am here."', f'"I am your friend," said {friend}.')),
        f'"There is {noise} outside," said {name}.',
        f'"Then let us look what it is," said {friend}.',
        "They went to the door, hand in hand.",
        f"It was only {cause}!",
        f"{name} and {friend} laughed and laughed.",
        "They sat down outside and looked at the moon and the stars.",
        rng.choice((f'"The night is beautiful," said {name}.', f'"How many stars there are!" said {name}.')),
        f"From that day on {name} was not afraid of the dark any more.",
        _end(rng),
    ]  # fmt: skip


def the_race(rng: Random, cast: Cast) -> list[str]:
    """Who stops to help wins more than a race."""
    _, name, kind, friend = cast
    goal, prize = rng.choice(_GOALS), rng.choice(_PRIZES)
    return [
        *_begin(rng, cast),
        f"One day there was a big race to {goal}.",
        f"The winner was to get a {prize}.",
        rng.choice((f"{name} wanted to win very much.", f"{name} had run every day to be fast.")),
        rng.choice(_WEATHER),
        rng.choice(('"Ready, steady, go!" called the old goat.', "A bell rang, and they all began to run.")),
        f"{name} ran and ran and was the first of all.",
        f"But on the way {article(kind)} called {friend} sat on the ground.",
        f'"I have hurt my foot," said {friend}.',
        rng.choice((f"{name} looked at {goal} and then at {friend}.", f"{name} stopped at once.")),
        f'"I will help you," said {name}.',
        f"{name} took {friend} by the hand, and they went on slowly.",
        f"They were the last ones to come to {goal}.",
        "But everybody clapped and cheered.",
        f'"{name} has the best heart," said the old goat and gave them the {prize}.',
        f"{name} and {friend} shared it with all the others.",
        _end(rng),
    ]  # fmt: skip


def the_seed(rng: Random, cast: Cast) -> list[str]:
    """What is cared for grows."""
    _, name, kind, friend = cast
    seed = rng.choice(_SEEDS)
    return [
        *_begin(rng, cast),
        f"One spring {name} found {article(seed)} seed.",
        f'"I will plant it," said {name}, and dug a small hole.',
        f"Every morning {name} gave it water.",
        "But day after day nothing happened.",
        f"{name} was sad and wanted to give up.",
        f"Then {article(kind)} came along. Its name was {friend}.",
        f'"You must wait a little longer," said {friend}. "Good things take time."',
        rng.choice(("So they waited together and told each other stories.", "So they waited and sang to the seed.")),
        rng.choice(("The sun shone, and the rain fell.", "It rained, and then the sun came out.")),
        "One morning there was a tiny green leaf!",
        f'"Look, {friend}!" called {name}. "It is growing!"',
        f"All summer the {seed} grew and grew.",
        rng.choice(("In autumn it was the biggest one in the whole land.", "In autumn it was taller than the house.")),
        f"{name} and {friend} made a big feast for all their friends.",
        f"And {name} kept one seed for the next spring.",
        _end(rng),
    ]  # fmt: skip


PLOTS: tuple[Plot, ...] = (lost_and_found, afraid_of_the_dark, the_race, the_seed)
